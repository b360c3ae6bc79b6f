//! Generated blocks of a Markdown file, between `<!-- name:begin -->` and `<!-- name:end -->`.
//!
//! A marker stands alone on its line. Reading and writing files is absent: both functions take and
//! give text, so that checking cannot write. Text outside the block is kept byte for byte.

/// Why a block cannot be written, or is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MarkerError {
    /// A marker is missing.
    #[error("no line `{marker}`")]
    Missing {
        /// The marker.
        marker: String,
    },
    /// A marker stands on two lines.
    #[error("line {line}: a second `{marker}`")]
    Duplicate {
        /// The marker.
        marker: String,
        /// Line of the second, from 1.
        line: usize,
    },
    /// The end precedes the begin, or a marker of another block lies within the block.
    #[error("line {line}: `{marker}` crosses block {name}")]
    Crossed {
        /// The block.
        name: String,
        /// The marker in the wrong place.
        marker: String,
        /// Its line, from 1.
        line: usize,
    },
    /// The new content holds a marker, and would break the next rewrite.
    #[error("the content of block {name} holds the marker `{marker}`")]
    Content {
        /// The block.
        name: String,
        /// The marker.
        marker: String,
    },
    /// The block differs from what is generated.
    #[error("line {line}: block {name} is stale: want {want:?}, got {got:?}")]
    Stale {
        /// The block.
        name: String,
        /// First line that differs, from 1.
        line: usize,
        /// The generated line; the end marker if the file has more lines.
        want: String,
        /// The file's line.
        got: String,
    },
}

/// `text` with the content of block `name` replaced by `content`. Rewriting twice changes nothing.
pub fn rewrite(text: &str, name: &str, content: &str) -> Result<String, MarkerError> {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let (begin, end) = block(&lines, name)?;
    let content = content_lines(name, content)?;
    let line_end = if lines[begin].ends_with("\r\n") { "\r\n" } else { "\n" };
    let mut out = lines[..=begin].concat();
    for line in content {
        out += line;
        out += line_end;
    }
    Ok(out + &lines[end..].concat())
}

/// Compares block `name` with `content`, line by line.
pub fn check(text: &str, name: &str, content: &str) -> Result<(), MarkerError> {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let (begin, end) = block(&lines, name)?;
    let end_marker = marker(name, "end");
    let mut wanted = content_lines(name, content)?;
    wanted.push(&end_marker);
    let found = lines[begin + 1..=end].iter().map(|line| line.trim_end_matches(['\r', '\n']));
    // Both lists end with the end marker, which no content holds, so neither is a prefix.
    for (offset, (want, got)) in wanted.iter().zip(found).enumerate() {
        let same = *want == got || (*want == end_marker && got.trim() == end_marker);
        if !same {
            return Err(MarkerError::Stale {
                name: name.to_owned(),
                line: begin + offset + 2,
                want: (*want).to_owned(),
                got: got.to_owned(),
            });
        }
    }
    Ok(())
}

fn marker(name: &str, edge: &str) -> String {
    format!("<!-- {name}:{edge} -->")
}

/// Whether the line is a marker of any block.
fn is_marker(line: &str) -> bool {
    let inner = line.trim().strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->"));
    let name = inner.and_then(|text| text.strip_suffix(":begin").or(text.strip_suffix(":end")));
    name.is_some_and(|name| !name.is_empty() && !name.contains(char::is_whitespace))
}

/// Indices of the two marker lines of a block.
fn block(lines: &[&str], name: &str) -> Result<(usize, usize), MarkerError> {
    let (begin, end) = (only(lines, name, "begin")?, only(lines, name, "end")?);
    let crossed = |line: usize| MarkerError::Crossed {
        name: name.to_owned(),
        marker: lines[line].trim().to_owned(),
        line: line + 1,
    };
    if end < begin {
        return Err(crossed(end));
    }
    match (begin + 1..end).find(|&line| is_marker(lines[line])) {
        Some(line) => Err(crossed(line)),
        None => Ok((begin, end)),
    }
}

/// Index of the one line that is the marker.
fn only(lines: &[&str], name: &str, edge: &str) -> Result<usize, MarkerError> {
    let marker = marker(name, edge);
    let mut found = (0..lines.len()).filter(|&line| lines[line].trim() == marker);
    match (found.next(), found.next()) {
        (None, _) => Err(MarkerError::Missing { marker }),
        (Some(_), Some(second)) => Err(MarkerError::Duplicate { marker, line: second + 1 }),
        (Some(line), None) => Ok(line),
    }
}

fn content_lines<'a>(name: &str, content: &'a str) -> Result<Vec<&'a str>, MarkerError> {
    let lines: Vec<&str> = content.lines().collect();
    match lines.iter().find(|line| is_marker(line)) {
        Some(line) => {
            Err(MarkerError::Content { name: name.to_owned(), marker: line.trim().to_owned() })
        }
        None => Ok(lines),
    }
}
