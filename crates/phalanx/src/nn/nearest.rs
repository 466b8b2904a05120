//! The nearest of some names, for errors about a name that is not among them.

/// `; did you mean ..? (names: ..)`, to append to an error.
pub(super) fn nearest<'a>(wrong: &str, names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    let best = names.iter().min_by_key(|name| distance(wrong, name));
    let guess = best.filter(|name| distance(wrong, name) <= wrong.chars().count().div_ceil(2));
    let shown = names.iter().take(30).copied().collect::<Vec<_>>().join(", ");
    let more = if names.len() > 30 { ", .." } else { "" };
    match guess {
        Some(guess) => format!("; did you mean `{guess}`? (there are: {shown}{more})"),
        None if names.is_empty() => "; there are none".to_owned(),
        None => format!("; there are: {shown}{more}"),
    }
}

/// Levenshtein's distance between the first 64 characters of each.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().take(64).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
