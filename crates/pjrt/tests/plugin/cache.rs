//! Compiled programs on disk.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use phalanx_pjrt::{
    CacheOutcome, Client, CompileCache, CompileOptions, OptionValue, OverrideValue,
};

use crate::{TempDir, add, array, client, plugin, run, values};

/// The programs in a cache.
fn entries(dir: &TempDir) -> impl Iterator<Item = PathBuf> {
    let files = std::fs::read_dir(&dir.0).unwrap();
    let paths = files.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|end| end == "exe"))
}

#[test]
fn programs_are_serialised_and_cached() {
    let dir = TempDir::new("cache");
    let cache = CompileCache::open(&dir.0, CompileCache::DEFAULT_LIMIT).unwrap();
    let options = CompileOptions::default();
    let x = array(&[32], &[1.0f32; 32]);
    let compile = |code: &str, options: &CompileOptions| {
        let (program, outcome) = client()
            .compile_cached(Some(&cache), code, options)
            .unwrap();
        assert_eq!(values::<f32>(&run(&program, &[&x, &x])[0]), [2.0; 32]);
        outcome
    };
    assert!(!client().is_cached(&cache, &add(32), &options));
    assert_eq!(compile(&add(32), &options), CacheOutcome::Stored);
    assert!(client().is_cached(&cache, &add(32), &options));
    assert_eq!(compile(&add(32), &options), CacheOutcome::Hit);
    let entry = entries(&dir).next().unwrap();
    let good = std::fs::read(&entry).unwrap();
    let mut bad = good.clone();
    bad[good.len() / 2] ^= 0x40;
    for damaged in [&bad[..], &good[..good.len() / 2], b""] {
        std::fs::write(&entry, damaged).unwrap();
        assert_eq!(compile(&add(32), &options), CacheOutcome::Replaced);
        assert_eq!(compile(&add(32), &options), CacheOutcome::Hit);
    }
    // SAFETY: they are no program at all.
    assert!(unsafe { client().deserialize(b"garbage") }.is_err());
}

#[test]
fn of_those_who_compile_a_program_at_once_one_does_and_the_others_load_it() {
    let dir = TempDir::new("cache-turns");
    let cache = CompileCache::open(&dir.0, CompileCache::DEFAULT_LIMIT).unwrap();
    let all = std::sync::Barrier::new(3);
    let compile = || {
        all.wait();
        let compiled = client().compile_cached(Some(&cache), &add(48), &CompileOptions::default());
        compiled.unwrap().1
    };
    let outcomes = std::thread::scope(|scope| {
        let threads = [(); 3].map(|()| scope.spawn(compile));
        threads.map(|thread| thread.join().unwrap())
    });
    let count = |outcome| outcomes.iter().filter(|found| **found == outcome).count();
    assert_eq!(
        (count(CacheOutcome::Stored), count(CacheOutcome::Hit)),
        (1, 2)
    );
}

#[test]
fn a_cache_tells_options_and_clients_apart() {
    let dir = TempDir::new("cache-options");
    let cache = CompileCache::open(&dir.0, CompileCache::DEFAULT_LIMIT).unwrap();
    let options = CompileOptions::default();
    let compile = |code: &str, options: &CompileOptions| {
        let compiled = client().compile_cached(Some(&cache), code, options);
        compiled.unwrap().1
    };
    assert_eq!(compile(&add(32), &options), CacheOutcome::Stored);
    let level = |level| CompileOptions {
        overrides: BTreeMap::from([(
            "xla_backend_optimization_level".to_owned(),
            OverrideValue::Int(level),
        )]),
        ..CompileOptions::default()
    };
    assert_eq!(compile(&add(32), &level(0)), CacheOutcome::Stored);
    assert_eq!(compile(&add(32), &level(1)), CacheOutcome::Stored);
    let one = Client::new(plugin(), &[("cpu_device_count", OptionValue::Int(1))]).unwrap();
    let (_, outcome) = one
        .compile_cached(Some(&cache), &add(32), &options)
        .unwrap();
    assert_eq!(
        outcome,
        CacheOutcome::Stored,
        "a client with other devices has its own entry"
    );
    assert_eq!(entries(&dir).count(), 4);
    let onednn = CompileOptions {
        overrides: BTreeMap::from([("xla_cpu_use_onednn".to_owned(), OverrideValue::Bool(true))]),
        ..CompileOptions::default()
    };
    assert!(matches!(
        compile(&add(32), &onednn),
        CacheOutcome::NotStored(_)
    ));
    assert_eq!(
        client().compile_cached(None, &add(32), &options).unwrap().1,
        CacheOutcome::Off
    );
    std::fs::remove_dir_all(&dir.0).unwrap();
    assert!(matches!(
        compile(&add(32), &options),
        CacheOutcome::NotStored(_)
    ));
}

/// The folder of the cache of a process with flags of its own.
const CACHE_OF_FLAGS: &str = "PHALANX_TEST_CACHE_OF_FLAGS";

#[test]
#[ignore = "in a process with flags of its own, which the test below starts"]
fn compiles_with_flags() {
    let folder = std::env::var_os(CACHE_OF_FLAGS).unwrap();
    let cache = CompileCache::open(folder, CompileCache::DEFAULT_LIMIT).unwrap();
    let compiled = client().compile_cached(Some(&cache), &add(32), &CompileOptions::default());
    println!("outcome {:?}", compiled.unwrap().1);
}

/// What the cache says to a process whose `XLA_FLAGS` is this file.
fn outcome_with(flags: &Path, cache: &TempDir) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "cache::compiles_with_flags"])
        .args(["--ignored", "--nocapture"])
        .env("XLA_FLAGS", flags)
        .env(CACHE_OF_FLAGS, &cache.0)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = text
        .split_once("outcome ")
        .and_then(|(_, said)| said.lines().next());
    said.unwrap_or_else(|| panic!("{output:?}")).to_owned()
}

#[test]
fn flags_in_a_file_count_as_they_are_in_it() {
    let (dir, cache) = (TempDir::new("flags"), TempDir::new("cache-flags"));
    let file = dir.0.join("flags");
    std::fs::write(&file, "--xla_cpu_enable_fast_min_max=true").unwrap();
    assert_eq!(outcome_with(&file, &cache), "Stored");
    assert_eq!(outcome_with(&file, &cache), "Hit");
    std::fs::write(&file, "--xla_cpu_enable_fast_min_max=false").unwrap();
    assert_eq!(outcome_with(&file, &cache), "Stored");
    std::fs::write(&file, "--xla_cpu_use_onednn=false").unwrap();
    let refused = outcome_with(&file, &cache);
    assert!(refused.contains("onednn flag in XLA_FLAGS"), "{refused}");
}
