//! A chat template's source, turned from Jinja into what minijinja reads the same way.
//!
//! Here: the tag `generation`, subscripts and slices (Python's, which also work on text), tuples.
//! Absent: evaluation. The invariant: what the two engines would read differently and is not
//! rewritten here is refused, never passed on.

/// The method that a subscript becomes.
pub(super) const ITEM: &str = "__getitem__";
/// The method that a slice becomes.
pub(super) const SLICE: &str = "__slice__";
/// The function that a tuple becomes.
pub(super) const TUPLE: &str = "__tuple__";
/// The functions that comparisons become: Python refuses to compare what is unlike.
pub(super) const LT: &str = "__lt__";
pub(super) const LE: &str = "__le__";
pub(super) const GT: &str = "__gt__";
pub(super) const GE: &str = "__ge__";
pub(super) const IN: &str = "__in__";
const NOT_IN: &str = "not __in__";

/// Tags that both engines have, `generation` aside.
const TAGS: [&str; 20] = [
    "if",
    "elif",
    "else",
    "endif",
    "for",
    "endfor",
    "set",
    "endset",
    "macro",
    "endmacro",
    "call",
    "endcall",
    "filter",
    "endfilter",
    "with",
    "endwith",
    "break",
    "continue",
    "raw",
    "endraw",
];

/// Words after which a bracket opens a list and a parenthesis a group.
const OPERATORS: [&str; 10] =
    ["in", "not", "and", "or", "if", "else", "elif", "is", "for", "recursive"];

/// Methods of a dict. In Python they hide keys of the same name.
const METHODS: [&str; 11] = [
    "clear",
    "copy",
    "fromkeys",
    "get",
    "items",
    "keys",
    "pop",
    "popitem",
    "setdefault",
    "update",
    "values",
];

/// Rewrites a template.
///
/// # Errors
/// What is unknown or cannot be read the same way.
pub(super) fn translate(template: &str) -> Result<String, String> {
    // Jinja reads every line end as a line feed.
    let source = template.replace("\r\n", "\n").replace('\r', "\n");
    let mut scanner = Scanner { rest: &source };
    let mut out = String::new();
    while let Some(at) = scanner.opening() {
        out.push_str(scanner.take(at));
        let mark = scanner.take(2);
        if mark == "{#" {
            let end = scanner.rest.find("#}").ok_or("a comment does not end")?;
            out.push_str(mark);
            out.push_str(scanner.take(end + 2));
        } else if mark == "{{" {
            out.push_str(mark);
            let sign = usize::from(scanner.rest.starts_with(['-', '+']));
            out.push_str(scanner.take(sign));
            scanner.expression("}}", true, &mut out)?;
        } else {
            scanner.tag(&mut out)?;
        }
    }
    out.push_str(scanner.rest);
    Ok(out)
}

/// What is left to be read.
struct Scanner<'a> {
    rest: &'a str,
}

impl<'a> Scanner<'a> {
    fn opening(&self) -> Option<usize> {
        ["{{", "{%", "{#"].iter().filter_map(|mark| self.rest.find(mark)).min()
    }

    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        taken
    }

    fn while_is(&mut self, is: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !is(c)).unwrap_or(self.rest.len());
        self.take(end)
    }

    /// A tag behind its opening.
    fn tag(&mut self, out: &mut String) -> Result<(), String> {
        let sign = self.take(usize::from(self.rest.starts_with(['-', '+'])));
        let space = self.while_is(char::is_whitespace);
        let name = self.while_is(word);
        let ours = match name {
            "generation" => "with",
            "endgeneration" => "endwith",
            known if TAGS.contains(&known) => known,
            other => return Err(format!("the tag {other:?} is not supported")),
        };
        for part in ["{%", sign, space, ours] {
            out.push_str(part);
        }
        if name == "raw" {
            let end = self.end_of_raw().ok_or("a raw block does not end")?;
            out.push_str(self.take(end));
            return Ok(());
        }
        if name == "for" {
            let end = self.rest.find(" in ").ok_or("a loop without in")?;
            out.push_str(self.take(end));
        }
        self.expression("%}", true, out).map(drop)
    }

    /// Where the tag that ends a raw block begins.
    fn end_of_raw(&self) -> Option<usize> {
        let tags = self.rest.match_indices("{%").map(|(at, _)| at);
        let mut ends = tags.filter(|at| {
            let inside = self.rest[at + 2..].trim_start_matches(['-', '+']).trim_start();
            inside.starts_with("endraw")
        });
        ends.next()
    }

    /// Copies an expression up to and with `close`; says at which bytes of `out` its commas and
    /// colons stand.
    fn expression(
        &mut self,
        close: &str,
        top: bool,
        out: &mut String,
    ) -> Result<Vec<(usize, char)>, String> {
        let (mut marks, mut operand) = (Vec::new(), false);
        let mut level = Level::new(out.len());
        loop {
            let signed = top && self.rest.starts_with(['-', '+']);
            if self.rest.starts_with(close) || (signed && self.rest[1..].starts_with(close)) {
                level.end(out);
                out.push_str(self.take(close.len() + usize::from(!self.rest.starts_with(close))));
                return Ok(marks);
            }
            let c = self.rest.chars().next().ok_or("an expression does not end")?;
            match c {
                '\'' | '"' => {
                    out.push_str(self.string(c)?);
                    operand = true;
                }
                '[' if operand => self.subscript(out)?,
                '(' if operand => {
                    out.push_str(self.take(1));
                    self.expression(")", false, out)?;
                }
                '(' => {
                    self.group(out)?;
                    operand = true;
                }
                '[' | '{' => {
                    out.push_str(self.take(1));
                    self.expression(if c == '[' { "]" } else { "}" }, false, out)?;
                    operand = true;
                }
                _ if word(c) => operand = self.name(operand, &mut level, out)?,
                '.' => {
                    out.push_str(self.take(1));
                    out.push_str(self.while_is(char::is_whitespace));
                    self.attribute(out)?;
                }
                _ if c.is_whitespace() => out.push_str(self.take(c.len_utf8())),
                '<' | '>' | '=' | '!' => {
                    self.comparison(&mut level, out)?;
                    operand = false;
                }
                '|' => {
                    out.push_str(self.take(1));
                    operand = false;
                }
                '+' | '-' | '*' | '/' | '%' | '~' => {
                    level.arithmetic(c, operand, out);
                    out.push_str(self.take(1));
                    operand = false;
                }
                _ => {
                    level.end(out);
                    marks.push((out.len(), c));
                    out.push_str(self.take(c.len_utf8()));
                    level = Level::new(out.len());
                    operand = false;
                }
            }
        }
    }

    /// A name or a word that is an operator; whether an operand ends with it.
    fn name(&mut self, operand: bool, level: &mut Level, out: &mut String) -> Result<bool, String> {
        let name = self.while_is(word);
        if name == "is" {
            level.simple = false;
            out.push_str(name);
            return Ok(self.test(out));
        }
        if !OPERATORS.contains(&name) {
            out.push_str(name);
            return Ok(true);
        }
        if operand && name == "in" {
            level.compare(IN, out)?;
        } else if operand && name == "not" {
            self.while_is(char::is_whitespace);
            if self.while_is(word) != "in" {
                return Err("not stands behind a value".into());
            }
            level.compare(NOT_IN, out)?;
        } else {
            level.end(out);
            out.push_str(name);
            *level = Level::new(out.len());
        }
        Ok(false)
    }

    /// A comparison, or the sign that gives a name its value.
    fn comparison(&mut self, level: &mut Level, out: &mut String) -> Result<(), String> {
        let two = [("<=", LE), (">=", GE), ("==", ""), ("!=", "")];
        let one = [("<", LT), (">", GT), ("=", "")];
        let signs = || two.iter().chain(&one);
        let found = signs().find(|(sign, _)| self.rest.starts_with(sign));
        let &(sign, function) = found.ok_or("a sign that is no operator")?;
        self.take(sign.len());
        if sign == "=" {
            level.end(out);
            out.push_str(sign);
            *level = Level::new(out.len());
            return Ok(());
        }
        level.compare(function, out)?;
        if function.is_empty() {
            out.push_str(sign);
        }
        Ok(())
    }

    /// The name behind `is`, which is no operand; whether one may follow is left to the engine.
    fn test(&mut self, out: &mut String) -> bool {
        out.push_str(self.while_is(char::is_whitespace));
        for _ in 0..2 {
            let name = self.while_is(word);
            out.push_str(name);
            if name != "not" {
                break;
            }
            out.push_str(self.while_is(char::is_whitespace));
        }
        // An argument in parentheses is a call; a list is an argument too.
        self.rest.starts_with('(')
    }

    /// A name behind a point.
    fn attribute(&mut self, out: &mut String) -> Result<(), String> {
        let name = self.while_is(word);
        if METHODS.contains(&name) && !self.rest.trim_start().starts_with('(') {
            return Err(format!("{name} is read as a key, but Python's dict has such a method"));
        }
        out.push_str(name);
        Ok(())
    }

    /// A text in quotes.
    fn string(&mut self, quote: char) -> Result<&'a str, String> {
        let mut escaped = false;
        for (at, c) in self.rest.char_indices().skip(1) {
            if c == quote && !escaped {
                return Ok(self.take(at + 1));
            }
            escaped = c == '\\' && !escaped;
        }
        Err("a text in quotes does not end".into())
    }

    /// `[key]` and `[start:stop:step]` behind an operand.
    fn subscript(&mut self, out: &mut String) -> Result<(), String> {
        self.take(1);
        let mut inside = String::new();
        let marks = self.expression("]", false, &mut inside)?;
        inside.pop();
        let colons = marks.iter().filter(|(_, c)| *c == ':').count();
        if marks.len() > colons || colons > 2 {
            return Err(format!("the subscript [{inside}] is not supported"));
        }
        if colons == 0 {
            out.push_str(&format!(".{ITEM}({inside})"));
            return Ok(());
        }
        let mut parts = ["none"; 3];
        let mut start = 0;
        for (part, end) in marks.iter().map(|m| m.0).chain([inside.len()]).enumerate() {
            if !inside[start..end].trim().is_empty() {
                parts[part] = &inside[start..end];
            }
            start = end + 1;
        }
        out.push_str(&format!(".{SLICE}({})", parts.join(", ")));
        Ok(())
    }

    /// A parenthesis that is no call: a group, or a tuple.
    fn group(&mut self, out: &mut String) -> Result<(), String> {
        self.take(1);
        let mut inside = String::new();
        let marks = self.expression(")", false, &mut inside)?;
        if !marks.is_empty() || inside.trim() == ")" {
            out.push_str(TUPLE);
        }
        out.push('(');
        out.push_str(&inside);
        Ok(())
    }
}

/// What is known of an expression between two of its boundaries (brackets, commas, `and`).
struct Level {
    /// Where the operand of a comparison begins.
    start: usize,
    /// The comparison before: its function, and where it stood.
    before: Option<(&'static str, usize)>,
    /// The arithmetic operator before.
    operator: char,
    /// Whether what follows it is one operand, without a sign or a test.
    simple: bool,
}

impl Level {
    fn new(start: usize) -> Self {
        Self { start, before: None, operator: ' ', simple: true }
    }

    /// An operator behind an operand, or a sign. What `~` joins is made a text first, since
    /// minijinja prints lists as Rust does; a product is a number and needs nothing.
    fn arithmetic(&mut self, operator: char, binary: bool, out: &mut String) {
        if !binary {
            self.simple = false;
            return;
        }
        let joins = self.operator == '~' || operator == '~';
        let products = ['*', '/', '%'];
        if joins && self.simple && ![self.operator, operator].iter().any(|o| products.contains(o)) {
            out.push_str("|string");
        }
        (self.operator, self.simple) = (operator, true);
    }

    /// A comparison, which becomes a call of `function`; an empty one stays as it is.
    fn compare(&mut self, function: &'static str, out: &mut String) -> Result<(), String> {
        self.arithmetic(' ', true, out);
        if self.before.replace((function, out.len())).is_some() {
            return Err("a chain of comparisons is not supported".into());
        }
        Ok(())
    }

    /// The end of what is compared.
    fn end(&mut self, out: &mut String) {
        self.arithmetic(' ', true, out);
        if let Some((function, at)) = self.before.take().filter(|(f, _)| !f.is_empty()) {
            let right = out.split_off(at);
            let left = out.split_off(self.start);
            out.push_str(&format!(" {function}({left}, {right}) "));
        }
    }
}

fn word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}
