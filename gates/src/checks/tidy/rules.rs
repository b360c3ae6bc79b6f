//! Who may know whom, and what may stand where.

use super::{File, Finding};

/// Parts that name no workspace crate.
const ALONE: [&str; 4] = ["engine", "fixtures", "oracle", "reports"];
/// Words that the engine's sources may not hold, in halves so that this file may be checked as
/// well.
const WORDS: [[&str; 2]; 4] = [["def", "ect"], ["ora", "cle"], ["gol", "den"], ["har", "ness"]];
/// Marks of unfinished work.
const MARKS: [[&str; 2]; 2] = [["TO", "DO"], ["FIX", "ME"]];
/// Where `unsafe` may stand.
const UNSAFE: [&str; 2] = ["engine/src/cpu/simd", "gates/src/heap.rs"];
/// Path to material that is not part of the project.
const OUTSIDE: [&str; 2] = ["../sha", "red"];

/// All findings of one file, sizes left out.
pub fn of_file(file: &File) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut add = |line: usize, rule, what: String| {
        found.push(Finding { file: file.name.clone(), line, rule, what });
    };
    if file.name.ends_with(".toml") {
        manifest(file, &mut add);
    } else {
        source(file, &mut add);
    }
    for (i, line) in file.text.lines().enumerate() {
        if line.contains(&OUTSIDE.concat()) {
            add(i + 1, "outside", "a path out of the project".to_owned());
        }
    }
    found
}

fn manifest(file: &File, add: &mut impl FnMut(usize, &'static str, String)) {
    let part = file.name.split('/').next().unwrap_or_default();
    let mut table = "";
    for (i, line) in file.text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('[') {
            table = line;
        }
        if table == "[features]" && table == line {
            add(i + 1, "features", "a table of cargo features".to_owned());
        }
        let crate_name = line.starts_with("samebits");
        if ALONE.contains(&part) && table == "[dependencies]" && crate_name {
            add(i + 1, "dependency", format!("{part} names a workspace crate"));
        }
        let fixtures = line.starts_with("samebits-fixtures");
        if ALONE.contains(&part) && table == "[dev-dependencies]" && crate_name && !fixtures {
            add(i + 1, "dependency", format!("tests of {part} name a workspace crate"));
        }
    }
}

fn source(file: &File, add: &mut impl FnMut(usize, &'static str, String)) {
    let engine = file.name.starts_with("engine/src/");
    let check = file.name.starts_with("gates/src/checks/");
    for (i, line) in file.text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        for word in WORDS.map(|halves| halves.concat()) {
            if engine && line.to_lowercase().contains(&word) {
                add(i + 1, "word", format!("the engine knows the word {word}"));
            }
        }
        for mark in MARKS.map(|halves| halves.concat()) {
            if line.contains(&mark) {
                add(i + 1, "mark", format!("{mark} does not reach main"));
            }
        }
        let block = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"];
        let allowed = UNSAFE.iter().any(|folder| file.name.starts_with(folder));
        let quoted = code.contains('"');
        if !allowed && !quoted && block.iter().any(|b| code.contains(b)) {
            add(
                i + 1,
                "unsafe",
                "unsafe outside the kernels and the counting allocator".to_owned(),
            );
        }
        if check && !quoted && threshold(code) {
            add(i + 1, "threshold", "a literal threshold; limits live in limits.json".to_owned());
        }
    }
}

/// A comparison with a literal float other than zero.
fn threshold(code: &str) -> bool {
    let literal = |rest: &str| {
        let text: String = rest
            .trim_start_matches(['=', ' '])
            .chars()
            .take_while(|c| c.is_ascii_digit() || matches!(c, '.' | 'e' | '-' | '_'))
            .collect();
        let float = text.contains('.') || text.contains("e-");
        float && text.parse::<f64>().is_ok_and(|value| value != 0.0)
    };
    let signs = [" < ", " > ", " <= ", " >= "];
    let after = signs.iter().flat_map(|sign| code.split(sign).skip(1));
    after.into_iter().any(literal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules_of(name: &str, text: &str) -> Vec<&'static str> {
        let file = File { name: name.to_owned(), text: text.to_owned() };
        of_file(&file).into_iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn every_rule_can_be_broken() {
        for (name, text, want) in [
            (
                "engine/Cargo.toml",
                "[dependencies]\nsamebits-fixtures.workspace = true",
                "dependency",
            ),
            ("oracle/Cargo.toml", "[dev-dependencies]\nsamebits.workspace = true", "dependency"),
            ("gates/Cargo.toml", "[features]", "features"),
            ("engine/src/op/mod.rs", "// As the Oracle says.", "word"),
            ("reports/src/row.rs", concat!("// TO", "DO later"), "mark"),
            ("engine/src/model/run.rs", "    unsafe { f() }", "unsafe"),
            ("gates/src/checks/ideal.rs", "if err > 1e-3 {", "threshold"),
            ("gates/src/checks/ideal.rs", "if err <= 0.5 {", "threshold"),
            ("gates/src/lib.rs", concat!("const P: &str = \"../sha", "red/x\";"), "outside"),
        ] {
            assert_eq!(rules_of(name, text), [want], "{name}: {text}");
        }
    }

    #[test]
    fn what_is_allowed_is_not_found() {
        for (name, text) in [
            ("engine/Cargo.toml", "[dev-dependencies]\nsamebits-fixtures.workspace = true"),
            ("gates/Cargo.toml", "[dependencies]\nsamebits.workspace = true"),
            ("engine/src/cpu/simd/avx512.rs", "    unsafe { f() }"),
            ("gates/src/heap.rs", "unsafe impl GlobalAlloc for Counting {"),
            ("gates/src/checks/ideal.rs", "if own == 0.0 || n > 12 { let x = 0.5; }"),
            ("gates/src/compare.rs", "// the golden tensors"),
        ] {
            assert_eq!(rules_of(name, text), [""; 0], "{name}: {text}");
        }
    }
}
