//! The machine loses its power in a save, on a file system that drops what was not synced. The calls of real saves are recorded; a seed
//! says when the crash is and what of the calls before it is on the disk then.

use std::fs;
use std::path::Path;
use std::process::Command;

use phalanx::checkpoint::TrainingState;
use phalanx_testkit::Random;

use crate::forgetful::{Disk, Op, recorded};
use crate::{FOLDER, TARGET, fit, rows, scratch, seed, states, trainer, trials};

/// Saves that are made one after the other.
const SAVES: usize = 3;
/// Below this folder is the disk that crashes.
const DISK: &str = "disk";
/// What the process below writes beside it when a save is done.
const ANSWER: &str = "answered-";
/// Seeds among which there is one for each call that saves cannot do without.
const ENOUGH: u64 = 3000;

/// What is recorded: a process that saves three states in the same place. It does nothing as a test of its own.
#[test]
fn saves_to_be_recorded() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let folder = Path::new(&folder);
    let place = std::env::var(TARGET).unwrap();
    let target = folder.join(DISK).join(&place);
    let mut training = (place == KEPT).then(trainer);
    for number in 0..SAVES {
        let state = TrainingState::load(folder.join(format!("state-{number}"))).unwrap();
        match &mut training {
            Some(trainer) => {
                let plan = fit(number + 1).resume().checkpoint(&target);
                trainer.fit(&rows(), plan.keep_checkpoints(2)).unwrap();
            }
            None if place == WEIGHTS => state.save_weights(&target).unwrap(),
            None => state.save(&target).unwrap(),
        }
        fs::write(folder.join(format!("{ANSWER}{number}")), "").unwrap();
        copy(&target, &folder.join(format!("saved-{number}")));
    }
}

/// Directories above are missing.
const DEEP: &str = "a/b/c";
/// Two checkpoints are kept.
const KEPT: &str = "kept";
const WEIGHTS: &str = "w.safetensors";

/// Copies a file or a directory of files, by calls that name one place each.
fn copy(from: &Path, to: &Path) {
    if from.is_file() {
        return fs::write(to, fs::read(from).unwrap()).unwrap();
    }
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        copy(&entry.path(), &to.join(entry.file_name()));
    }
}

/// The calls of the process above; none where there is no strace.
fn record(folder: &Path, place: &str) -> Option<Vec<Op>> {
    fs::create_dir(folder.join(DISK)).unwrap();
    let calls = "trace=write,writev,pwrite64,pwritev,fallocate,ftruncate,truncate,fsync,fdatasync,sync,syncfs,sync_file_range,\
        mkdir,mkdirat,rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,rmdir,openat,copy_file_range,sendfile";
    let traced = Command::new("strace")
        .args(["-f", "-qq", "-y", "-s", "0", "-e", calls, "-o"])
        .arg(folder.join("log"))
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "crashes::saves_to_be_recorded",
            "--test-threads",
            "1",
        ])
        // Else a thread that starts asks the system for the number of processors, while another saves.
        .env("MALLOC_ARENA_MAX", "1")
        .env(FOLDER, folder)
        .env(TARGET, place)
        .output();
    let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
    if log.is_empty() {
        phalanx_testkit::skip("it needs the package strace, and to be allowed to trace processes");
        return None;
    }
    let last = folder.join(format!("{ANSWER}{}", SAVES - 1));
    assert!(last.exists(), "{traced:?}");
    let disk = folder.join(DISK).display().to_string();
    let bytes = |saves: usize, path: &str| {
        let saved = folder.join(format!("saved-{saves}"));
        let name = path.rsplit('/').next().unwrap();
        fs::read(if saved.is_file() {
            saved
        } else {
            saved.join(name)
        })
        .unwrap_or_else(|error| panic!("{path} of save {saves}: {error}"))
    };
    // How far the training is, for who follows it, is no checkpoint.
    let log: Vec<&str> = log
        .lines()
        .filter(|line| !line.contains("/kept.done"))
        .collect();
    Some(recorded(&log.join("\n"), &disk, ANSWER, bytes))
}

/// The crash of a seed: how many calls were made before it, and what it leaves of what they did not sync.
struct Crash {
    random: Random,
    made: usize,
    share: u64,
}

impl Crash {
    fn new(ops: &[Op], seed: u64) -> Self {
        let mut random = Random::new(seed);
        let made = random.below(ops.len() as u64 + 1) as usize;
        let share = [0, 20, 50, 80, 100][random.below(5) as usize];
        Self {
            random,
            made,
            share,
        }
    }

    /// The number of saves that were answered, and the disk in a folder.
    fn happen(mut self, ops: &[Op], folder: &Path) -> usize {
        let made = &ops[..self.made];
        let mut disk = Disk::new();
        made.iter().for_each(|op| disk.apply(op));
        let _ = fs::remove_dir_all(folder);
        disk.crash(&mut self.random, self.share).make(folder);
        let is_answer = |op: &&Op| matches!(op, Op::Answer);
        made.iter().filter(is_answer).count()
    }
}

/// Where saves are made, and which of them is found there.
struct Place {
    name: &'static str,
    states: [TrainingState; SAVES],
    weights: Vec<Vec<u8>>,
}

impl Place {
    /// The number of the save that is found, from 1 on.
    fn found(&self, disk: &Path) -> Result<usize, String> {
        let path = disk.join(self.name);
        let number = if self.name == WEIGHTS {
            let bytes = fs::read(path).map_err(|error| error.to_string())?;
            self.weights.iter().position(|save| *save == bytes)
        } else {
            let found = TrainingState::load_newest(path);
            let (found, _) = found.map_err(|error| error.to_string())?;
            self.states.iter().position(|state| *state == found)
        };
        let number = number.ok_or("a mixture is taken for a save")?;
        Ok(number + 1)
    }

    /// Whether what was answered is there after a crash: the last save that was, or the one after it.
    fn check(&self, ops: &[Op], crash: Crash, folder: &Path) -> Result<(), String> {
        let at = format!(
            "after {} calls and {} % of what they did not sync",
            crash.made, crash.share
        );
        let answered = crash.happen(ops, folder);
        match self.found(folder) {
            Ok(found) if found == answered || found == answered + 1 => Ok(()),
            Err(_) if answered == 0 && !folder.join(self.name).exists() => Ok(()),
            found => Err(format!(
                "{at} {answered} were answered and found is {found:?}"
            )),
        }
    }

    fn save(&self, disk: &Path, number: usize) {
        let (path, state) = (disk.join(self.name), &self.states[number - 1]);
        match self.name == WEIGHTS {
            true => state.save_weights(path).unwrap(),
            false => state.save(path).unwrap(),
        }
    }
}

/// Saves in a place crash in all these ways, and nothing is lost; without any step of them something is.
fn crashes(name: &'static str) {
    let scratch = scratch(&format!("crashes-{}", name.replace('/', "-")));
    let folder = fs::canonicalize(&scratch).unwrap();
    let states: [TrainingState; SAVES] = states();
    for (number, state) in states.iter().enumerate() {
        state.save(folder.join(format!("state-{number}"))).unwrap();
    }
    let Some(ops) = record(&folder, name) else {
        return;
    };
    // The calls are understood: all of them leave what is there.
    let mut whole = Disk::new();
    ops.iter().for_each(|op| whole.apply(op));
    whole.make(&folder.join("whole"));
    let is_same = tree(&folder.join("whole")) == tree(&folder.join(DISK));
    assert!(is_same, "{name}: other files are made again than there are");
    let weights = |number| fs::read(folder.join(format!("saved-{number}")));
    let saved = |number| TrainingState::load(folder.join(format!("saved-{number}")));
    let place = Place {
        name,
        // The times of epochs are those of the process.
        states: match name {
            KEPT => std::array::from_fn(|number| saved(number).unwrap()),
            _ => states,
        },
        weights: (0..SAVES)
            .filter_map(|number| weights(number).ok())
            .collect(),
    };
    let crashed = folder.join("crashed");
    let first = seed();
    for seed in first..first + trials(150) as u64 {
        let held = place.check(&ops, Crash::new(&ops, seed), &crashed);
        held.unwrap_or_else(|wrong| panic!("{name}, seed {seed}: {wrong}"));
        // What is left is not in the way.
        if seed % 8 == 0 {
            place.save(&crashed, 1);
            assert_eq!(place.found(&crashed), Ok(1), "{name}, seed {seed}");
        }
    }
    let mutants = mutants(&ops);
    for Mutant { what, at, ops } in &mutants {
        let mut after = (0..ENOUGH)
            .map(|seed| Crash::new(ops, seed))
            .filter(|crash| crash.made > *at);
        let is_lost = after.any(|crash| place.check(ops, crash, &crashed).is_err());
        assert!(is_lost, "{name}: nothing is lost {what}");
    }
    println!(
        "{name}: {} calls; {} changes of them lose a save",
        ops.len(),
        mutants.len()
    );
}

#[test]
fn a_crash_of_the_machine_loses_no_answered_checkpoint() {
    crashes(DEEP);
}

#[test]
fn a_crash_of_the_machine_loses_none_of_which_older_ones_are_kept() {
    crashes(KEPT);
}

#[test]
fn a_crash_of_the_machine_loses_no_answered_weights() {
    crashes(WEIGHTS);
}

/// Calls that are not those of a save, from a number on.
struct Mutant {
    what: String,
    at: usize,
    ops: Vec<Op>,
}

/// The calls without each of the syncs, and with each sync that comes before a save gets its name after it.
fn mutants(ops: &[Op]) -> Vec<Mutant> {
    let mut mutants = Vec::new();
    for (at, op) in ops.iter().enumerate() {
        let Op::Sync(synced) = op else {
            continue;
        };
        let mut without = ops.to_vec();
        without.remove(at);
        mutants.push(Mutant {
            what: format!("without call {at}, {op:?}"),
            at,
            ops: without,
        });
        let next = ops.get(at + 1);
        if let Some(Op::Exchange(from, to) | Op::Rename(from, to)) = next
            && from == synced
        {
            let mut later = ops.to_vec();
            later.swap(at, at + 1);
            later[at + 1] = Op::Sync(to.clone());
            mutants.push(Mutant {
                what: format!("where call {at}, {op:?}, comes after {next:?}"),
                at,
                ops: later,
            });
        }
    }
    mutants
}

/// The files below a folder with their contents.
fn tree(folder: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.extension().is_some_and(|end| end == "done") => {}
                false => all.push((
                    path.strip_prefix(folder).unwrap().into(),
                    fs::read(&path).unwrap(),
                )),
            }
        }
    }
    all.sort();
    all
}
