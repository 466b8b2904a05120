//! Rust files as text: finding them, and the words in them.

use std::path::{Path, PathBuf};

/// A Rust file.
pub(crate) struct RustFile {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

/// The Rust files under a folder, in order of their paths. Hidden folders and build outputs are left out.
pub(crate) fn rust_files(folder: &Path) -> Result<Vec<RustFile>, String> {
    let mut found = Vec::new();
    visit(folder, &mut found)?;
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn visit(folder: &Path, found: &mut Vec<RustFile>) -> Result<(), String> {
    let told =
        |path: &Path, error: std::io::Error| format!("cannot read {}: {error}", path.display());
    for entry in std::fs::read_dir(folder).map_err(|error| told(folder, error))? {
        let entry = entry.map_err(|error| told(folder, error))?;
        let path = entry.path();
        let name = entry.file_name();
        let skipped = name == "target" || name.to_string_lossy().starts_with('.');
        let is_folder = entry
            .file_type()
            .map_err(|error| told(&path, error))?
            .is_dir();
        if is_folder && !skipped {
            visit(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).map_err(|error| told(&path, error))?;
            found.push(RustFile { path, text });
        }
    }
    Ok(())
}

impl RustFile {
    /// The lines of code with their numbers from 1: no comment lines, nothing from the unit tests on.
    pub(crate) fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text
            .lines()
            .enumerate()
            .take_while(|(_, line)| *line != "#[cfg(test)]")
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
            .map(|(index, line)| (index + 1, line))
    }
}

/// The words of a text: runs of letters, digits and underscores.
pub(crate) fn words(text: &str) -> impl Iterator<Item = &str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.split(move |c| !is_word(c))
        .filter(|word| !word.is_empty())
}

/// The names that a text defines: `fn name`, `struct name` and so on.
pub(crate) fn definitions(text: &str) -> impl Iterator<Item = &str> {
    const KEYWORDS: [&str; 10] = [
        "fn",
        "struct",
        "enum",
        "trait",
        "mod",
        "type",
        "const",
        "static",
        "union",
        "macro_rules",
    ];
    text.lines().flat_map(|line| {
        let mut before = "";
        words(line).filter(move |word| {
            let defined = KEYWORDS.contains(&before);
            before = word;
            defined
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_found() {
        let text = "pub(crate) const fn one() {}\nstruct Two<T>(T);\nuse three::Four;\nmacro_rules! five {}\n";
        let defined: Vec<&str> = definitions(text).collect();
        assert_eq!(defined, ["fn", "one", "Two", "five"]);
    }

    #[test]
    fn code_has_no_comments_and_no_tests() {
        let text = "//! doc\nuse a;\n    // b\nfn c() {}\n#[cfg(test)]\nmod tests {}\n".to_owned();
        let file = RustFile {
            path: PathBuf::new(),
            text,
        };
        assert_eq!(
            file.code().collect::<Vec<_>>(),
            [(2, "use a;"), (4, "fn c() {}")]
        );
    }
}
