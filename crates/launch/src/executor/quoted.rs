//! Words for a shell.

/// A word as a shell takes it, whatever is in it.
#[must_use]
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::process::Command;

    fn trials() -> u32 {
        let given = std::env::var("PHALANX_TEST_TRIALS").ok();
        given.map_or(500, |trials| trials.parse().unwrap())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(trials()))]

        #[test]
        fn a_shell_gives_every_word_back_unchanged(words in prop::collection::vec("[^\0]*", 1..4)) {
            let line: Vec<String> = words.iter().map(|word| quoted(word)).collect();
            // As in a batch script: a script within a script.
            let inner = format!("printf '%s\\0' {}", line.join(" "));
            let outer = format!("bash -c {}", quoted(&inner));
            let output = Command::new("bash").args(["-c", &outer]).output().unwrap();
            let expected: Vec<u8> = words.iter().flat_map(|word| word.bytes().chain([0])).collect();
            prop_assert_eq!(output.stdout, expected);
            prop_assert!(output.stderr.is_empty());
        }
    }
}
