//! The check of sizes: no function over 60 lines and no file over 600, tests included, but those listed. Unit tests count as functions,
//! and not as lines of the file that they are in.

use crate::source::{RustFile, rust_files};
use crate::workspace::Workspace;

const FUNCTION_LINES: usize = 60;
const FILE_LINES: usize = 600;

/// What may be longer: a file, a function of it (none for the file itself), and the reason.
const LONGER: [(&str, &str, &str); 2] = [
    (
        "crates/phalanx/src/data/shard_tests.rs",
        "",
        "tests of every policy through every chain of stages",
    ),
    (
        "crates/pjrt/src/install.rs",
        "download",
        "one command and its outcomes",
    ),
];

pub(crate) fn check(workspace: &Workspace) -> Result<String, String> {
    let mut found = Vec::new();
    for package in workspace.ours() {
        for file in rust_files(package.folder())? {
            let path = workspace.relative(&file.path).display().to_string();
            found.extend(
                too_long(&file)
                    .into_iter()
                    .map(|(name, lines)| (path.clone(), name, lines)),
            );
        }
    }
    let listed = |path: &str, name: &str| {
        LONGER
            .iter()
            .any(|entry| (entry.0, entry.1) == (path, name))
    };
    let is_found = |entry: &&(&str, &str, &str)| {
        found
            .iter()
            .any(|(path, name, _)| (entry.0, entry.1) == (path, name))
    };
    let long = found.iter().filter(|(path, name, _)| !listed(path, name)).map(|(path, name, lines)| {
        let (what, most) = if name.is_empty() { (String::new(), FILE_LINES) } else { (format!(": {name}"), FUNCTION_LINES) };
        format!("{path}{what}: {lines} lines, at most {most}; split it, or list it with a reason in xtask/src/sizes.rs")
    });
    let stale = LONGER
        .iter()
        .filter(|entry| !is_found(entry))
        .map(|(path, name, _)| {
            format!(
                "xtask/src/sizes.rs lists {path} {name}, which is not too long; remove the entry"
            )
        });
    let problems: Vec<String> = long.chain(stale).collect();
    if problems.is_empty() {
        Ok(format!("{} exceptions", LONGER.len()))
    } else {
        Err(problems.join("\n"))
    }
}

/// Functions that are too long, and the file itself under an empty name, with their lines.
fn too_long(file: &RustFile) -> Vec<(String, usize)> {
    let lines: Vec<&str> = file.text.lines().collect();
    let tests = lines.iter().position(|line| *line == "#[cfg(test)]");
    let own = tests.unwrap_or(lines.len());
    let mut long = Vec::new();
    if own > FILE_LINES {
        long.push((String::new(), own));
    }
    for (start, line) in lines.iter().enumerate() {
        let Some(name) = function(line) else { continue };
        // Formatted code closes a function at its own indentation.
        let indentation = &line[..line.len() - line.trim_start().len()];
        let end = lines[start..]
            .iter()
            .position(|line| line.strip_prefix(indentation) == Some("}"));
        let length = end.map_or(0, |end| end + 1);
        let is_one_line = line.trim_end().ends_with(['}', ';']);
        if length > FUNCTION_LINES && !is_one_line {
            long.push((name.to_owned(), length));
        }
    }
    long
}

/// The name of the function that begins on a line.
fn function(line: &str) -> Option<&str> {
    let (before, after) = line.trim_start().split_once("fn ")?;
    let qualifiers = [
        "pub",
        "pub(crate)",
        "pub(super)",
        "const",
        "unsafe",
        "extern",
        "\"C\"",
        "async",
    ];
    let is_start = before
        .split_whitespace()
        .all(|word| qualifiers.contains(&word));
    is_start.then(|| crate::source::words(after).next())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: String) -> RustFile {
        RustFile {
            path: "a.rs".into(),
            text,
        }
    }

    #[test]
    fn long_functions_and_files_are_found() {
        let body = "        x();\n".repeat(FUNCTION_LINES);
        let text = format!(
            "impl A {{\n    pub(crate) const fn long<T>(\n        a: T,\n    ) {{\n{body}    }}\n    fn short() {{}}\n}}\n"
        );
        assert_eq!(
            too_long(&file(text.clone())),
            [("long".to_owned(), FUNCTION_LINES + 4)]
        );
        let lines = "// a\n".repeat(FILE_LINES + 1);
        let of_tests = file(format!("#[cfg(test)]\n{lines}{text}"));
        assert_eq!(
            too_long(&of_tests),
            [("long".to_owned(), FUNCTION_LINES + 4)]
        );
        assert_eq!(too_long(&file(lines)), [(String::new(), FILE_LINES + 1)]);
    }

    #[test]
    fn functions_are_told_from_other_lines() {
        assert_eq!(
            function("    pub(super) unsafe extern \"C\" fn a(b: C)"),
            Some("a")
        );
        assert_eq!(function("fn d<T>() {"), Some("d"));
        assert_eq!(function("    let f: fn (u8) = g;"), None);
        assert_eq!(function("/// fn h()"), None);
    }
}
