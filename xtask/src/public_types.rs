//! The list of public types, `docs/public-types.md`: a change of what users may name is seen in review.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::language::{is_source, type_name};
use crate::source::{RustFile, rust_files, words};
use crate::workspace::Workspace;

/// Where the list stands, from the root.
const PATH: &str = "docs/public-types.md";
const HEAD: &str = "# Public types\n\nThe types that each module declares `pub` or hands on by `pub use`, the inner ones of a crate too. Written by `cargo xtask public-types`.\n";

/// Compares the list with the code.
pub(crate) fn check(workspace: &Workspace) -> Result<String, String> {
    let listed = std::fs::read_to_string(workspace.root.join(PATH)).unwrap_or_default();
    let (text, count) = list(workspace)?;
    if listed == text {
        return Ok(format!("{count} types"));
    }
    let new = text
        .lines()
        .find(|line| !listed.lines().any(|other| other == *line));
    Err(format!(
        "{PATH} is not what the code declares{}; run `cargo xtask public-types` and look at the difference",
        new.map_or_else(String::new, |line| format!(", first `{line}`")),
    ))
}

/// `cargo xtask public-types`: writes the list.
pub(crate) fn command() -> Result<(), String> {
    let workspace = Workspace::load()?;
    let (text, count) = list(&workspace)?;
    std::fs::write(workspace.root.join(PATH), text)
        .map_err(|error| format!("cannot write {PATH}: {error}"))?;
    println!("{PATH}: {count} types");
    Ok(())
}

fn list(workspace: &Workspace) -> Result<(String, usize), String> {
    let mut text = HEAD.to_owned();
    let mut count = 0;
    for package in workspace.ours() {
        let modules = modules(package.folder())?;
        if modules.is_empty() {
            continue;
        }
        text += &format!("\n## {}\n\n", package.name);
        for (module, names) in modules {
            count += names.len();
            let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            text += &format!("- {module}: {}\n", names.join(", "));
        }
    }
    Ok((text, count))
}

/// The public types of each module at the top of a package; a file of the root is its own module.
fn modules(folder: &Path) -> Result<BTreeMap<String, BTreeSet<String>>, String> {
    let mut modules: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in rust_files(folder)? {
        let Some(module) = module(folder, &file.path) else {
            continue;
        };
        let public = file.code().filter(|(_, line)| line.starts_with("pub "));
        let declared = public.filter_map(|(_, line)| type_name(line));
        let names: Vec<&str> = declared.chain(handed_on(&file)).collect();
        if !names.is_empty() {
            let names = names.into_iter().map(str::to_owned);
            modules.entry(module).or_default().extend(names);
        }
    }
    Ok(modules)
}

/// The types that a file hands on by `pub use`: how types are seen that macros declare.
fn handed_on(file: &RustFile) -> impl Iterator<Item = &str> {
    let mut is_inside = false;
    let lines = file.code().filter(move |(_, line)| {
        let is_use = is_inside || line.starts_with("pub use ");
        is_inside = is_use && !line.ends_with(';');
        is_use
    });
    lines
        .flat_map(|(_, line)| words(line))
        .filter(|word| word.starts_with(char::is_uppercase) && word.contains(char::is_lowercase))
}

fn module(folder: &Path, path: &Path) -> Option<String> {
    let inner = path.strip_prefix(folder.join("src")).ok()?;
    let first = inner.components().next()?.as_os_str().to_string_lossy();
    is_source(path).then(|| first.trim_end_matches(".rs").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_a_file_or_a_folder_of_the_root() {
        let of = |path: &str| module(Path::new("crates/a"), Path::new(path));
        assert_eq!(of("crates/a/src/fit/step.rs").as_deref(), Some("fit"));
        assert_eq!(of("crates/a/src/error.rs").as_deref(), Some("error"));
        assert_eq!(of("crates/a/tests/b.rs"), None);
    }

    #[test]
    fn types_that_are_handed_on_are_seen() {
        let text = "pub use a::B;\nuse c::D;\npub use e::{\n    F1, Fine, LIMIT, function,\n};\nuse g::H;\n";
        let file = RustFile {
            path: Path::new("a.rs").to_owned(),
            text: text.to_owned(),
        };
        assert_eq!(handed_on(&file).collect::<Vec<_>>(), ["Fine"]);
    }
}
