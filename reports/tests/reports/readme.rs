//! Blocks of the README.

use rstest::rstest;
use samebits_reports::{MarkerError, check, rewrite};

const TEXT: &str = "# T\n\n<!-- gates:begin -->\nold\n<!-- gates:end -->\n\n\
                    <!-- speed:begin -->\nkept\n<!-- speed:end -->\nno final line feed";

#[test]
fn only_the_block_changes() {
    let new = rewrite(TEXT, "gates", "| a |\n| b |\n").expect("the block is there");
    assert_eq!(new, TEXT.replace("old\n", "| a |\n| b |\n"));
    assert_eq!(rewrite(&new, "gates", "| a |\n| b |\n").expect("the block is there"), new);
    assert_eq!(check(&new, "gates", "| a |\n| b |\n"), Ok(()));
    let empty = rewrite(TEXT, "gates", "").expect("the block is there");
    assert_eq!(empty, TEXT.replace("old\n", ""));
    assert_eq!(check(&empty, "gates", ""), Ok(()));
}

#[test]
fn line_ends_stay_as_they_are() {
    let text = TEXT.replace('\n', "\r\n");
    let new = rewrite(&text, "gates", "a\nb\n").expect("the block is there");
    assert_eq!(new, text.replace("old\r\n", "a\r\nb\r\n"));
    assert_eq!(check(&new, "gates", "a\nb\n"), Ok(()));
}

#[test]
fn indented_markers_and_a_last_line_without_line_feed() {
    let text = "  <!-- a:begin -->\nx\n  <!-- a:end -->";
    let new = rewrite(text, "a", "y").expect("the block is there");
    assert_eq!(new, "  <!-- a:begin -->\ny\n  <!-- a:end -->");
    assert_eq!(check(&new, "a", "y"), Ok(()));
}

#[rstest]
#[case::changed("| a |\n| x |\n", 5, "| b |", "| x |")]
#[case::missing("| a |\n", 5, "| b |", "<!-- gates:end -->")]
#[case::empty("", 4, "| a |", "<!-- gates:end -->")]
#[case::extra("| a |\n| b |\n| c |\n", 6, "<!-- gates:end -->", "| c |")]
#[case::trailing_space("| a | \n| b |\n", 4, "| a |", "| a | ")]
fn the_first_differing_line_is_named(
    #[case] found: &str,
    #[case] line: usize,
    #[case] want: &str,
    #[case] got: &str,
) {
    let text = TEXT.replace("old\n", found);
    let stale = MarkerError::Stale {
        name: "gates".to_owned(),
        line,
        want: want.to_owned(),
        got: got.to_owned(),
    };
    assert_eq!(check(&text, "gates", "| a |\n| b |\n"), Err(stale));
}

#[rstest]
#[case::none("x\n", "no line `<!-- a:begin -->`")]
#[case::no_end("<!-- a:begin -->\n", "no line `<!-- a:end -->`")]
#[case::within_a_line("see `<!-- a:begin -->`\n<!-- a:end -->\n", "no line `<!-- a:begin -->`")]
#[case::two_begins(
    "<!-- a:begin -->\n<!-- a:begin -->\n<!-- a:end -->\n",
    "line 2: a second `<!-- a:begin -->`"
)]
#[case::two_ends(
    "<!-- a:begin -->\n<!-- a:end -->\n\n<!-- a:end -->\n",
    "line 4: a second `<!-- a:end -->`"
)]
#[case::swapped("<!-- a:end -->\n<!-- a:begin -->\n", "line 1: `<!-- a:end -->` crosses block a")]
#[case::crossed(
    "<!-- a:begin -->\n<!-- b:begin -->\n<!-- a:end -->\n<!-- b:end -->\n",
    "line 2: `<!-- b:begin -->` crosses block a"
)]
#[case::crossed_before(
    "<!-- b:begin -->\n<!-- a:begin -->\n<!-- b:end -->\n<!-- a:end -->\n",
    "line 3: `<!-- b:end -->` crosses block a"
)]
fn bad_markers(#[case] text: &str, #[case] want: &str) {
    let rewritten = rewrite(text, "a", "x").expect_err("bad markers are refused");
    assert_eq!(rewritten.to_string(), want);
    assert_eq!(check(text, "a", "x"), Err(rewritten));
}

#[test]
fn content_with_a_marker_is_refused() {
    for content in ["x\n<!-- gates:end -->\n", " <!-- other:begin --> "] {
        let refused = rewrite(TEXT, "gates", content);
        assert!(matches!(refused, Err(MarkerError::Content { .. })), "{refused:?}");
    }
}
