//! Licence expressions: `MIT OR (Apache-2.0 AND BSD-3-Clause)`, and the older `MIT/Apache-2.0`.

/// Whether the allowed licences are enough for an expression; the error says what cannot be read.
pub(crate) fn satisfied(expression: &str, allowed: &[String]) -> Result<bool, String> {
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = &words[..];
    match (alternatives(&mut rest, allowed), rest) {
        (Some(answer), []) => Ok(answer),
        _ => Err(format!("the licence {expression:?} is no SPDX expression")),
    }
}

fn alternatives(words: &mut &[&str], allowed: &[String]) -> Option<bool> {
    let mut answer = conjunction(words, allowed)?;
    while take(words, "OR") {
        answer |= conjunction(words, allowed)?;
    }
    Some(answer)
}

fn conjunction(words: &mut &[&str], allowed: &[String]) -> Option<bool> {
    let mut answer = licence(words, allowed)?;
    while take(words, "AND") {
        answer &= licence(words, allowed)?;
    }
    Some(answer)
}

fn licence(words: &mut &[&str], allowed: &[String]) -> Option<bool> {
    if take(words, "(") {
        let answer = alternatives(words, allowed)?;
        return take(words, ")").then_some(answer);
    }
    let (&name, rest) = words.split_first()?;
    *words = rest;
    if ["OR", "AND", "WITH", ")"].contains(&name) {
        return None;
    }
    let mut name = name.to_owned();
    if take(words, "WITH") {
        let (exception, rest) = words.split_first()?;
        *words = rest;
        name = format!("{name} WITH {exception}");
    }
    Some(allowed.contains(&name))
}

fn take(words: &mut &[&str], word: &str) -> bool {
    let found = words.first() == Some(&word);
    if found {
        *words = &words[1..];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_evaluated() {
        let allowed =
            ["MIT", "Apache-2.0", "Unicode-3.0", "GPL-2.0 WITH Classpath"].map(String::from);
        for (expression, answer) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("MIT OR GPL-3.0", true),
            ("GPL-3.0/MIT", true),
            ("MIT AND GPL-3.0", false),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("MIT OR GPL-3.0 AND Zlib", true),
            ("(MIT OR GPL-3.0) AND Zlib", false),
            ("GPL-2.0 WITH Classpath", true),
            ("MIT WITH Classpath", false),
        ] {
            assert_eq!(satisfied(expression, &allowed), Ok(answer), "{expression}");
        }
        for broken in [
            "",
            "MIT OR",
            "(MIT",
            "MIT)",
            "AND MIT",
            "MIT Apache-2.0",
            "MIT WITH",
            "()",
        ] {
            assert!(satisfied(broken, &allowed).is_err(), "{broken}");
        }
    }
}
