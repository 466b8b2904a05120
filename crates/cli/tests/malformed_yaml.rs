//! Every file of `malformed/yaml` is refused with the words of `expected.txt`: where, what, and what to do.
//!
//! `PHALANX_UPDATE_EXPECTED=1 cargo test -p phalanx-cli --test malformed_yaml` writes `expected.txt` anew; read the difference.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use phalanx_cli::config::{Problems, parse, parse_bytes};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/malformed/yaml")
}

fn files() -> Vec<PathBuf> {
    let entries = fs::read_dir(folder()).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|end| end == "yaml"));
    files.sort();
    files
}

fn refusal(path: &Path) -> Problems {
    let name = Path::new(path.file_name().unwrap());
    match parse_bytes(&fs::read(path).unwrap(), name) {
        Ok(config) => panic!("{}: accepted as {config:?}", name.display()),
        Err(problems) => problems,
    }
}

#[test]
fn each_file_is_refused_in_the_expected_words() {
    let mut found = String::new();
    for path in files() {
        writeln!(found, "{}\n", without_layers(&refusal(&path).to_string())).unwrap();
    }
    let table = folder().join("expected.txt");
    if std::env::var_os("PHALANX_UPDATE_EXPECTED").is_some() {
        fs::write(&table, &found).unwrap();
    }
    let expected = fs::read_to_string(&table).unwrap();
    for (found, expected) in found.split("\n\n").zip(expected.split("\n\n")) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), expected.len());
}

/// The words without the list of all layers, which grows.
fn without_layers(words: &str) -> String {
    let Some((before, list)) = words.split_once("; known are dense, ") else {
        return words.to_owned();
    };
    let after = list.find(['\n', ';']).map_or("", |end| &list[end..]);
    format!("{before}; known are dense, ..{after}")
}

#[test]
fn each_line_says_where_and_what_to_do() {
    let files = files();
    assert!(files.len() >= 80, "{}", files.len());
    for path in files {
        let problems = refusal(&path);
        let lines = fs::read(&path)
            .unwrap()
            .split(|&byte| byte == b'\n')
            .count();
        assert!(!problems.list.is_empty());
        for problem in &problems.list {
            assert!(
                (1..=lines).contains(&problem.at.line),
                "{}: {problem:?}",
                path.display()
            );
            assert!(problem.at.column >= 1);
            assert!(
                !problem.message.is_empty() && !problem.next.is_empty(),
                "{problem:?}"
            );
            assert!(
                !problems
                    .to_string()
                    .contains(|c: char| c.is_control() && c != '\n')
            );
        }
    }
}

const GOOD: &str = "\
data: {csv: a.csv}
model: [{dense: {units: 10}}]
optimizer: adam
loss: mean_squared_error
";

#[test]
fn a_good_file_cut_anywhere_is_read_or_refused_and_never_panics() {
    assert!(parse(GOOD, Path::new("good.yaml")).is_ok());
    for end in 0..GOOD.len() {
        if let Err(problems) = parse(&GOOD[..end], Path::new("cut.yaml")) {
            assert!(problems.to_string().starts_with("cut.yaml:"), "{problems}");
        }
    }
}

#[test]
fn a_good_file_with_any_character_put_anywhere_never_panics() {
    for at in 0..=GOOD.len() {
        for extra in [
            "\0", "\t", ":", "-", "&a ", "*a", "?", "{", "]", "\"", "'", "|", "%", "!", "\n",
            "\u{feff}", "é", "...", "---\n", "#",
        ] {
            let mut text = GOOD.to_owned();
            text.insert_str(at, extra);
            if let Err(problems) = parse(&text, Path::new("changed.yaml")) {
                assert!(!problems.list.is_empty());
            }
        }
    }
}

#[test]
fn a_huge_file_is_refused_at_once() {
    let start = Instant::now();
    let huge = GOOD.to_owned() + &"# filler\n".repeat(1 << 20);
    let message = parse(&huge, Path::new("huge.yaml"))
        .unwrap_err()
        .to_string();
    assert!(message.contains("expected at most 1048576"), "{message}");
    let many = "k".to_owned() + &": 1\nk".repeat(200_000);
    let message = parse(&many, Path::new("many.yaml"))
        .unwrap_err()
        .to_string();
    assert!(message.len() < 10_000, "{}", message.len());
    assert!(
        start.elapsed() < Duration::from_secs(30),
        "{:?}",
        start.elapsed()
    );
}

/// Bytes of the corpus cut, repeated, exchanged and flipped, for `PHALANX_FUZZ_SECONDS` (default 1): no panic, no slow file.
#[test]
fn random_changes_of_the_corpus_never_panic_and_are_quick() {
    let corpus: Vec<Vec<u8>> = files().iter().map(|path| fs::read(path).unwrap()).collect();
    let seconds = std::env::var("PHALANX_FUZZ_SECONDS").ok();
    let seconds = seconds.and_then(|text| text.parse().ok()).unwrap_or(1);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let start = Instant::now();
    let mut count = 0u64;
    while start.elapsed() < Duration::from_secs(seconds) {
        let mut bytes = corpus[random.below(corpus.len())].clone();
        for _ in 0..=random.below(6) {
            change(&mut bytes, &corpus, &mut random);
        }
        let began = Instant::now();
        if let Err(problems) = parse_bytes(&bytes, Path::new("fuzz.yaml")) {
            assert!(!problems.list.is_empty());
            assert!(problems.to_string().starts_with("fuzz.yaml:"));
        }
        // Twice, since the machine may have been busy.
        if began.elapsed() > Duration::from_secs(1) {
            let began = Instant::now();
            let _ = parse_bytes(&bytes, Path::new("fuzz.yaml"));
            assert!(
                began.elapsed() < Duration::from_secs(5),
                "{:?}",
                String::from_utf8_lossy(&bytes)
            );
        }
        count += 1;
    }
    println!("{count} files");
}

/// Xorshift: the same changes in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % end.max(1)
    }
}

fn change(bytes: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut Random) {
    const PIECES: [&[u8]; 16] = [
        b"\n", b"\t", b": ", b"- ", b"&a ", b"*a", b"? ", b"{", b"}", b"[", b"]", b"|\n", b">-\n",
        b"---\n", b"'", b"\xff",
    ];
    let at = random.below(bytes.len() + 1);
    let end = at + random.below(bytes.len() - at + 1);
    match random.below(6) {
        0 => drop(bytes.drain(at..end)),
        1 => {
            let piece = bytes[at..end].repeat(1 + random.below(40));
            bytes.splice(at..at, piece);
        }
        2 => {
            let other = &corpus[random.below(corpus.len())];
            bytes.splice(
                at..end,
                other[random.below(other.len() + 1)..].iter().copied(),
            );
        }
        3 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
        _ => drop(bytes.splice(at..at, PIECES[random.below(PIECES.len())].iter().copied())),
    }
    bytes.truncate(100_000);
}
