//! The check of directions: crates, and modules of the library, use only what the tables of `docs/ARCHITECTURE.md` say.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::architecture::{self, PATH, names, rows};
use crate::source::{RustFile, rust_files, words};
use crate::workspace::{Package, Workspace};

/// The package whose modules have directions.
const LIBRARY: &str = "phalanx";
/// The word for a module that may use all others.
const EVERYTHING: &str = "everything";

pub(crate) fn check(workspace: &Workspace) -> Result<String, String> {
    let text = architecture::read(workspace)?;
    let mut problems = crates(workspace, &text);
    problems.extend(modules(workspace, &text)?);
    if problems.is_empty() {
        Ok(String::new())
    } else {
        Err(problems.join("\n"))
    }
}

fn crates(workspace: &Workspace, text: &str) -> Vec<String> {
    let rows = rows(text, ["crate", "may use", "in tests also"]);
    let mut problems = Vec::new();
    for package in workspace.ours() {
        match rows
            .iter()
            .find(|row| names(row[0]) == [package.name.as_str()])
        {
            Some([_, uses, tests]) => {
                problems.extend(wrong_crates(package, &names(uses), &names(tests)));
            }
            None => problems.push(format!(
                "{PATH}: the table of crates lacks `{}`; say what it may use",
                package.name
            )),
        }
    }
    problems
}

fn wrong_crates(package: &Package, uses: &[&str], tests: &[&str]) -> Vec<String> {
    let ours = package
        .dependencies
        .iter()
        .filter(|dependency| dependency.path.is_some());
    let wrong = ours.filter(|dependency| {
        let name = dependency.name.as_str();
        let in_tests = dependency.kind.as_deref() == Some("dev") && tests.contains(&name);
        !uses.contains(&name) && !in_tests
    });
    wrong
        .map(|dependency| {
            let kind = dependency.kind.as_deref().unwrap_or("normal");
            format!(
                "{}: {kind} dependency on {}, which {PATH} does not allow; turn the dependency round",
                package.name, dependency.name
            )
        })
        .collect()
}

fn modules(workspace: &Workspace, text: &str) -> Result<Vec<String>, String> {
    let Some(library) = workspace.ours().find(|package| package.name == LIBRARY) else {
        return Ok(Vec::new());
    };
    let source = library.folder().join("src");
    let files = rust_files(&source)?;
    let allowed: BTreeMap<&str, &str> = rows(text, ["module", "may use"])
        .into_iter()
        .flat_map(|[module, uses]| names(module).into_iter().map(move |name| (name, uses)))
        .collect();
    let modules = files.iter().filter_map(|file| module(&source, &file.path));
    let crates = workspace.ours().map(|package| package.name.clone());
    let known: BTreeSet<String> = modules.chain(crates).collect();
    let mut problems = Vec::new();
    for file in &files {
        let Some(module) = module(&source, &file.path) else {
            continue;
        };
        let Some(uses) = allowed.get(module.as_str()) else {
            problems.push(format!(
                "{PATH}: the table of modules lacks `{module}`; say what it may use"
            ));
            continue;
        };
        let path = workspace.relative(&file.path).display();
        for (line, used) in crate_uses(file).into_iter().chain(other_crates(file)) {
            let may = uses.contains(EVERYTHING) || names(uses).contains(&&*used);
            if used != module && known.contains(&used) && !may {
                problems.push(format!(
                    "{path}:{line}: `{module}` uses `{used}`, which {PATH} does not allow; turn the dependency round"
                ));
            }
        }
    }
    problems.dedup();
    Ok(problems)
}

/// The top module that a file of the library belongs to; `None` for `lib.rs`.
fn module(source: &Path, file: &Path) -> Option<String> {
    let first = file.strip_prefix(source).ok()?.components().next()?;
    let name = Path::new(first.as_os_str()).file_stem()?.to_str()?;
    (name != "lib").then(|| name.to_owned())
}

/// The first names after `crate::` in a file's code, with their lines; each of them in `crate::{..}`.
fn crate_uses(file: &RustFile) -> Vec<(usize, String)> {
    const START: &str = "crate::";
    let mut used = Vec::new();
    let mut depth = 0i32;
    for (number, line) in file.code() {
        let mut rest = line;
        if depth > 0 {
            (depth, rest) = group(line, depth, number, &mut used);
        }
        while let Some((_, after)) = rest.split_once(START) {
            if after.starts_with('{') {
                (depth, rest) = group(after, 0, number, &mut used);
            } else {
                used.extend(words(after).next().map(|name| (number, name)));
                rest = after;
            }
        }
    }
    used.into_iter()
        .map(|(line, name)| (line, name.to_owned()))
        .collect()
}

/// The packages whose library's name is in a file's code, with their lines: `phalanx-graph` for `phalanx_graph`.
fn other_crates(file: &RustFile) -> impl Iterator<Item = (usize, String)> {
    let packages = |line| words(line).map(|word| word.replace('_', "-"));
    file.code().flat_map(move |(number, line)| {
        packages(line)
            .filter(|name| name.starts_with("phalanx-"))
            .map(move |name| (number, name))
    })
}

/// Reads on in a `{..}` list of names; the depth at the end of the line, and the text after the list.
fn group<'l>(
    text: &'l str,
    mut depth: i32,
    line: usize,
    used: &mut Vec<(usize, &'l str)>,
) -> (i32, &'l str) {
    let mut expects_name = depth == 1;
    for (at, sign) in text.char_indices() {
        match sign {
            '{' => depth += 1,
            '}' => depth -= 1,
            ' ' => continue,
            _ if expects_name && depth == 1 => {
                used.extend(words(&text[at..]).next().map(|name| (line, name)));
            }
            _ => {}
        }
        if depth == 0 {
            return (0, &text[at + 1..]);
        }
        expects_name = depth == 1 && (sign == ',' || sign == '{');
    }
    (depth, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_found() {
        let text = "use crate::data::Batch;\nuse crate::{Error, nn::{Cx, dense}, fit};\nlet a = crate::engine::b(crate::c());\n\
                    use crate::{\n    optim::{self, Adam},\n    Result,\n};\n// crate::no\nuse cratex;\n#[cfg(test)]\nuse crate::tests_only;\n";
        let file = RustFile {
            path: "a.rs".into(),
            text: text.into(),
        };
        let used: Vec<String> = crate_uses(&file)
            .into_iter()
            .map(|(_, name)| name)
            .collect();
        assert_eq!(
            used,
            [
                "data", "Error", "nn", "fit", "engine", "c", "optim", "Result"
            ]
        );
    }

    #[test]
    fn modules_are_named_after_files_and_folders() {
        let source = Path::new("/w/src");
        assert_eq!(module(source, Path::new("/w/src/lib.rs")), None);
        assert_eq!(
            module(source, Path::new("/w/src/error.rs")).as_deref(),
            Some("error")
        );
        assert_eq!(
            module(source, Path::new("/w/src/nn/dense.rs")).as_deref(),
            Some("nn")
        );
    }

    #[test]
    fn a_wrong_dependency_is_reported() {
        let package: Package = serde_json::from_str(
            r#"{"name": "phalanx-graph", "version": "0", "license": null, "source": null, "targets": [], "manifest_path": "/w/Cargo.toml",
                "dependencies": [
                    {"name": "phalanx-pjrt", "kind": "dev", "req": "*", "registry": null, "path": "/w/pjrt"},
                    {"name": "phalanx", "kind": null, "req": "*", "registry": null, "path": "/w/phalanx"},
                    {"name": "half", "kind": null, "req": "*", "registry": null}]}"#,
        )
        .unwrap();
        assert_eq!(wrong_crates(&package, &[], &["phalanx-pjrt"]).len(), 1);
        assert_eq!(wrong_crates(&package, &["phalanx"], &[]).len(), 1);
        assert_eq!(
            wrong_crates(&package, &["phalanx-pjrt", "phalanx"], &[]).len(),
            0
        );
    }
}
