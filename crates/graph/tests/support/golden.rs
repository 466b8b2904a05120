//! Golden text: compares with a file under `tests/golden/stablehlo`, or rewrites it.
//!
//! Another crate's tests may include this file by path.
#![allow(unreachable_pub, reason = "included by several test binaries")]

use std::path::PathBuf;

const UPDATE: &str = "PHALANX_UPDATE_GOLDEN";

/// Says what differs between a text and the golden file `name`; with `PHALANX_UPDATE_GOLDEN=1` writes the file.
///
/// `command` is what the reader should run to update.
pub fn mismatch(name: &str, text: &str, command: &str) -> Option<String> {
    let path = file(name);
    if std::env::var_os(UPDATE).is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        return None;
    }
    let shown = format!("tests/golden/stablehlo/{name}.mlir");
    let update = format!(
        "if the change is meant: {UPDATE}=1 {command}, and read the diff before committing"
    );
    match std::fs::read_to_string(&path) {
        // A checkout may have turned line ends.
        Ok(golden) if golden.replace("\r\n", "\n") == text => None,
        Ok(golden) => Some(format!(
            "{shown} differs (- golden, + now):\n{}\n{update}",
            diff(&golden, text)
        )),
        Err(error) => Some(format!("{shown}: {error}\n{update}")),
    }
}

/// The file of a golden text.
pub fn file(name: &str) -> PathBuf {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/stablehlo");
    PathBuf::from(root).join(format!("{name}.mlir"))
}

/// Lines that left (`-`) and came (`+`), with two lines around each change; numbered by the golden file.
pub fn diff(old: &str, new: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let common = longest_common(&old, &new);
    let mut lines: Vec<(char, usize, &str)> = Vec::new();
    let (mut i, mut j) = (0, 0);
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            lines.push((' ', i + 1, old[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == new.len() || i < old.len() && common[i + 1][j] >= common[i][j + 1] {
            lines.push(('-', i + 1, old[i]));
            i += 1;
        } else {
            lines.push(('+', i + 1, new[j]));
            j += 1;
        }
    }
    let near = |place: usize| {
        let around = place.saturating_sub(2)..lines.len().min(place + 3);
        lines[around].iter().any(|line| line.0 != ' ')
    };
    let shown = lines.iter().enumerate().filter(|(place, _)| near(*place));
    let shown = shown.map(|(_, (sign, number, line))| format!("{number:4} {sign} {line}"));
    shown.collect::<Vec<_>>().join("\n")
}

/// `[i][j]`: the length of the longest common subsequence of `old[i..]` and `new[j..]`.
fn longest_common(old: &[&str], new: &[&str]) -> Vec<Vec<u32>> {
    let mut table = vec![vec![0; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            table[i][j] = if old[i] == new[j] {
                table[i + 1][j + 1] + 1
            } else {
                table[i + 1][j].max(table[i][j + 1])
            };
        }
    }
    table
}
