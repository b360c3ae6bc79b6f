//! Lines of files, functions and code.

use super::{File, Finding, Sizes};

/// Files that hold a model's forward pass.
const MODELS: [&str; 1] = ["engine/src/model/qwen3.rs"];

/// Whether a file holds tests only.
fn test_file(name: &str) -> bool {
    name.contains("/tests/") || name.ends_with("/tests.rs")
}

/// Findings of size in one file.
pub fn of_file(file: &File, limits: &Sizes) -> Vec<Finding> {
    if !file.name.ends_with(".rs") {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut add = |line, rule, what| {
        found.push(Finding { file: file.name.clone(), line, rule, what });
    };
    let lines: Vec<&str> = file.text.lines().collect();
    for (i, line) in lines.iter().enumerate() {
        let width = line.chars().count();
        if width > limits.line {
            add(i + 1, "line", format!("{width} characters, the limit is {}", limits.line));
        }
    }
    let most = if MODELS.contains(&file.name.as_str()) { limits.model } else { limits.file };
    if lines.len() > most {
        add(0, "file", format!("{} lines, the limit is {most}", lines.len()));
    }
    for (start, len) in functions(&lines) {
        if len > limits.function {
            let what = format!("a function of {len} lines, the limit is {}", limits.function);
            add(start + 1, "function", what);
        }
    }
    found
}

/// First line and length of every function: formatted code closes one at its own indentation.
fn functions(lines: &[&str]) -> Vec<(usize, usize)> {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let opens = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().take(6).collect();
        let before = words.iter().take_while(|w| **w != "fn");
        let modifiers = ["pub", "const", "async", "unsafe", "extern", "pub(crate)", "pub(super)"];
        words.contains(&"fn")
            && before.into_iter().all(|w| modifiers.contains(w) || w.starts_with('"'))
    };
    let mut found = Vec::new();
    for (i, line) in lines.iter().enumerate().filter(|(_, line)| opens(line)) {
        let close = |(_, l): &(usize, &&str)| indent(l) == indent(line) && l.trim() == "}";
        let end = lines.iter().enumerate().skip(i).find(close).map(|(end, _)| end);
        let short = lines[i..].iter().position(|l| l.trim_end().ends_with(['{', ';', '}']));
        let one_line = short.is_some_and(|n| !lines[i + n].trim_end().ends_with('{'));
        if let (Some(end), false) = (end, one_line) {
            found.push((i, end - i + 1));
        }
    }
    found
}

/// Lines that are neither blank nor comment, up to the tests.
pub fn code_lines(file: &File) -> u64 {
    if test_file(&file.name) || !file.name.ends_with(".rs") {
        return 0;
    }
    let lines = file.text.lines().map(str::trim);
    let code = lines.take_while(|line| *line != "#[cfg(test)]");
    code.filter(|line| !line.is_empty() && !line.starts_with("//")).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> File {
        File { name: "engine/src/a.rs".to_owned(), text: text.to_owned() }
    }

    #[test]
    fn counts_code_but_neither_comments_nor_tests() {
        let text = "//! Doc.\n\nfn f() {\n    // Why.\n    g();\n}\n\n#[cfg(test)]\nmod tests {}\n";
        assert_eq!(code_lines(&file(text)), 3);
    }

    #[test]
    fn finds_what_is_too_large() {
        let limits = Sizes { line: 20, function: 3, file: 6, model: 6 };
        let text =
            "fn short() {}\nfn long() {\n    a();\n    b();\n}\n//\n// a line that is too wide\n";
        let rules: Vec<_> =
            of_file(&file(text), &limits).iter().map(|f| (f.rule, f.line)).collect();
        assert_eq!(rules, [("line", 7), ("file", 0), ("function", 2)]);
    }
}
