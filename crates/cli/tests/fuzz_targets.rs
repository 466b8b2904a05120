//! A slice of each fuzz target (`fuzz/targets`): its seeds, and inputs that are made of them by a few random changes, without coverage.
//!
//! PHALANX_TEST_INPUTS says how many of each, PHALANX_TEST_SEED where the random numbers begin. A failure names both for the input.
#![allow(
    unused_attributes,
    reason = "a target is a program of its own, and a module here"
)]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use phalanx_testkit::Random;

extern crate self as libfuzzer_sys;

/// What `libfuzzer_sys` makes a target of, as a function.
macro_rules! fuzz_target {
    ($(init: $init:expr,)? |$input:ident: &[u8]| $body:block) => {
        pub(crate) fn target($input: &[u8]) $body
    };
    (|$input:ident: &str| $body:block) => {
        pub(crate) fn target(input: &[u8]) {
            if let Ok($input) = std::str::from_utf8(input) $body
        }
    };
}
pub(crate) use fuzz_target;

macro_rules! targets {
    ($($name:ident: $path:literal $(, $folder:literal)*;)*) => {
        $(#[rustfmt::skip]
        #[allow(dead_code, unused_imports, clippy::pedantic, reason = "those who start it are not here")]
        #[path = $path]
        mod $name;)*

        /// Every target, with the folders of what it begins with beside its seeds.
        const TARGETS: &[(&str, fn(&[u8]), &[&str])] =
            &[$((stringify!($name), $name::target, &[$($folder),*]),)*];
    };
}

targets! {
    checkpoint: "../../../fuzz/targets/checkpoint.rs";
    coordination: "../../../fuzz/targets/coordination.rs";
    csv: "../../../fuzz/targets/csv.rs";
    etcd_log: "../../../fuzz/targets/etcd_log.rs";
    events: "../../../fuzz/targets/events.rs", "tests/golden/tensorboard";
    facts: "../../../fuzz/targets/facts.rs";
    frames: "../../../fuzz/targets/frames.rs";
    host_list: "../../../fuzz/targets/host_list.rs";
    idx: "../../../fuzz/targets/idx.rs";
    image: "../../../fuzz/targets/image.rs", "tests/golden/tensorflow/images";
    job_spec: "../../../fuzz/targets/job_spec.rs";
    keras_model: "../../../fuzz/targets/keras_model.rs";
    model_dir: "../../../fuzz/targets/model_dir.rs";
    numpy: "../../../fuzz/targets/numpy.rs", "tests/golden/numpy";
    parameters: "../../../fuzz/targets/parameters.rs";
    parquet: "../../../fuzz/targets/parquet.rs", "tests/golden/parquet";
    tar: "../../../fuzz/targets/tar.rs";
    tf_config: "../../../fuzz/targets/tf_config.rs";
    tf_example: "../../../fuzz/targets/tf_example.rs", "tests/golden/tensorflow";
    tfds: "../../../fuzz/targets/tfds.rs";
    tfrecord: "../../../fuzz/targets/tfrecord.rs", "tests/golden/tensorflow";
    weights: "../../../fuzz/targets/weights.rs", "tests/golden/keras/weights", "tests/golden/torch";
    yaml: "../../../fuzz/targets/yaml.rs", "crates/cli/tests/malformed/yaml";
}

/// The longest input.
const MOST_BYTES: usize = 8192;
/// The longest that one may take, however busy the machine is.
const MOST_TIME: Duration = Duration::from_secs(30);

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What a target begins with, in an order that is the same everywhere, and bytes of no file.
fn seeds(name: &str, folders: &[&str]) -> Vec<Vec<u8>> {
    let own = root().join("fuzz/seeds").join(name);
    let folders = folders.iter().map(|folder| root().join(folder));
    let mut files: Vec<PathBuf> = [own]
        .into_iter()
        .chain(folders)
        .flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten())
        .map(|file| file.path())
        .filter(|path| path.is_file())
        .collect();
    files.sort();
    let read = |path: &PathBuf| fs::read(path).unwrap();
    let mut seeds: Vec<Vec<u8>> = files.iter().map(read).collect();
    seeds.retain(|seed| seed.len() <= MOST_BYTES);
    seeds.push(vec![0; 64]);
    seeds
}

/// A seed after one to four changes: a bit, a byte of those that mean something, a stretch that is lost, doubled or of another seed.
fn changed(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    const TELLING: [u8; 12] = *b"\0\x01\x7f\x80\xff\n,:\"{[9";
    let mut below = |most: usize| random.below(most.max(1) as u64) as usize;
    let mut input = seeds[below(seeds.len())].clone();
    for _ in 0..=below(4) {
        let at = below(input.len());
        let end = at + below(input.len().min(at + 64) - at.min(input.len()) + 1);
        match below(6) {
            0 if !input.is_empty() => input[at] ^= 1 << below(8),
            1 if !input.is_empty() => input[at] = TELLING[below(TELLING.len())],
            2 => drop(input.drain(at..end.min(input.len()))),
            3 => {
                let again = input[at..end.min(input.len())].to_vec();
                input.splice(at..at, again);
            }
            4 => input.truncate(at),
            _ => {
                let other = &seeds[below(seeds.len())];
                let from = below(other.len());
                let stretch = &other[from..other.len().min(from + 1 + below(64))];
                input.splice(at..at, stretch.iter().copied());
            }
        }
    }
    input.truncate(MOST_BYTES);
    input
}

#[test]
fn each_target_takes_its_seeds_and_what_is_made_of_them() {
    let (count, seed) = (
        number("PHALANX_TEST_INPUTS", 200),
        number("PHALANX_TEST_SEED", 1),
    );
    for (name, target, folders) in TARGETS {
        let seeds = seeds(name, folders);
        let begun = Instant::now();
        let mut random = Random::new(seed);
        let of_random = (0..count).map(|_| changed(&seeds, &mut random));
        for (index, input) in seeds.clone().into_iter().chain(of_random).enumerate() {
            let start = Instant::now();
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(&input))) {
                println!(
                    "{name}, input {index} of seed {seed}: {}",
                    input.escape_ascii()
                );
                resume_unwind(panic);
            }
            assert!(
                start.elapsed() < MOST_TIME,
                "{name}, input {index} of seed {seed}"
            );
        }
        println!(
            "{name}: {} inputs in {:?}",
            seeds.len() as u64 + count,
            begun.elapsed()
        );
    }
}

/// A target that is added is tried here, too.
#[test]
fn every_target_is_in_the_table() {
    let files = fs::read_dir(root().join("fuzz/targets")).unwrap();
    let name = |file: fs::DirEntry| {
        file.path()
            .file_stem()
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned()
    };
    let mut there: Vec<String> = files.map(|file| name(file.unwrap())).collect();
    there.sort();
    let here: Vec<&str> = TARGETS.iter().map(|(name, ..)| *name).collect();
    assert_eq!(there, here);
}
