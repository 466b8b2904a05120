//! Checkpoints outlive what can happen to them: interrupted saves, failing disks, damaged files.

mod crashes;
mod evaluators;
mod forgetful;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use phalanx::checkpoint::TrainingState;
use phalanx::fit::SaveBehind;
use phalanx::fit::callbacks::ModelCheckpoint;
use phalanx::prelude::*;
use phalanx_testkit::Scratch;

/// A folder of these tests.
fn scratch(name: &str) -> Scratch {
    Scratch::new(env!("CARGO_TARGET_TMPDIR"), &format!("checkpoints-{name}"))
}

fn trainer() -> Trainer {
    let model = Sequential::new([4]).add(Dense::new(64)).add(Dense::new(3));
    let compile = Compile {
        optimizer: Adam::new(0.05).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        ..Compile::default()
    };
    let strategy = OneDeviceStrategy::new().unwrap();
    strategy.compile(model, compile).unwrap()
}

fn rows() -> Batches {
    let x: Vec<f32> = (0..48).map(|i| (i as f32 * 0.37).sin()).collect();
    let y: Vec<i32> = (0..12).map(|i| i * i % 3).collect();
    let rows = Dataset::from_arrays(HostTensor::new([12, 4], &x), HostTensor::new([12], &y));
    rows.unwrap().shuffle(1).batch(4)
}

fn fit(epochs: usize) -> Fit {
    Fit::epochs(epochs).progress(Progress::Silent)
}

/// The states after one epoch, two, and so on.
fn states<const N: usize>() -> [TrainingState; N] {
    let mut trainer = trainer();
    std::array::from_fn(|epoch| {
        trainer.fit(&rows(), fit(epoch + 1).resume()).unwrap();
        trainer.training_state().unwrap()
    })
}

/// How often something random is tried: `usual` times in CI, more where somebody wants it.
fn trials(usual: usize) -> usize {
    let asked = std::env::var("PHALANX_TEST_TRIALS").ok();
    asked.map_or(usual, |text| text.parse().unwrap())
}

/// Where the seeds of crashes begin.
fn seed() -> u64 {
    let asked = std::env::var("PHALANX_TEST_SEED").ok();
    asked.map_or(0, |text| text.parse().unwrap())
}

/// Small and fast numbers that need to be nothing else than different.
fn random(seed: &mut u64, below: usize) -> usize {
    *seed = seed
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) as usize % below.max(1)
}

#[test]
fn what_is_written_behind_the_training_is_what_is_written_at_once() {
    let scratch = scratch("behind");
    let states = [None, Some(SaveBehind::Wait), Some(SaveBehind::Skip)].map(|behind| {
        let path = scratch.join(format!("{behind:?}"));
        let plan = fit(6).checkpoint(&path).save_freq(1);
        let plan = behind.map_or(plan.clone(), |behind| plan.save_behind(behind));
        let mut trainer = trainer();
        trainer.fit(&rows(), plan).unwrap();
        (
            TrainingState::load(&path).unwrap(),
            trainer.training_state().unwrap(),
        )
    });
    let [(at_once, _), (behind, _), (skipping, last)] = &states;
    assert_eq!(at_once.variables(), behind.variables());
    assert_eq!(at_once.slots(), behind.slots());
    assert_eq!(at_once.iterations(), 18);
    assert_eq!(behind.iterations(), 18);
    // Whatever was left out, the end of the training was not.
    assert_eq!(skipping.iterations(), last.iterations());
    // Beside a callback that saves at each epoch, too.
    let path = scratch.join("beside");
    let plan = fit(6).checkpoint(&path).save_behind(SaveBehind::Skip);
    let each = scratch.join("each_{epoch}").display().to_string();
    let plan = plan.callback(ModelCheckpoint::new(each));
    trainer().fit(&rows(), plan).unwrap();
    assert!(TrainingState::load(&path).unwrap().iterations() > 0);
    // A disk that refuses ends the training, and what is not a number replaces nothing.
    let file = scratch.join("file");
    fs::write(&file, "mine").unwrap();
    let plan = fit(6)
        .checkpoint(file.join("below"))
        .save_behind(SaveBehind::Wait);
    assert!(trainer().fit(&rows(), plan).is_err());
    let path = scratch.join("good");
    let mut diverging = trainer();
    let plan = fit(1).checkpoint(&path).save_behind(SaveBehind::Wait);
    diverging.fit(&rows(), plan).unwrap();
    let good = TrainingState::load(&path).unwrap();
    let mut values = diverging.variables().unwrap();
    values[0].1 = HostTensor::full(values[0].1.shape().clone(), f64::NAN);
    diverging.set_variables(&values).unwrap();
    let plan = fit(2)
        .resume()
        .checkpoint(&path)
        .save_behind(SaveBehind::Wait);
    assert!(diverging.fit(&rows(), plan).is_err());
    assert_eq!(TrainingState::load(&path).unwrap(), good);
}

/// One damage of a checkpoint; in words.
fn damage(folder: &Path, seed: &mut u64) -> String {
    let names = fs::read_dir(folder).unwrap();
    let mut names: Vec<PathBuf> = names.map(|entry| entry.unwrap().path()).collect();
    names.sort();
    let path = &names[random(seed, names.len())];
    let mut bytes = fs::read(path).unwrap();
    let at = random(seed, bytes.len());
    let what = match random(seed, 5) {
        0 => {
            bytes[at] ^= 1 << random(seed, 8);
            "a bit"
        }
        1 => {
            bytes.truncate(at);
            "the end"
        }
        2 => {
            let from = at / 4096 * 4096;
            let to = (from + 4096).min(bytes.len());
            bytes[from..to].fill(0);
            "a page"
        }
        3 => {
            fs::remove_file(path).unwrap();
            return format!("all of {}", path.display());
        }
        _ => {
            let other = &names[random(seed, names.len())];
            bytes = fs::read(other).unwrap();
            "another file"
        }
    };
    fs::write(path, bytes).unwrap();
    format!("{what} of {} at {at}", path.display())
}

#[test]
fn damages_are_found_or_fallen_back_from() {
    let scratch = scratch("damages");
    let [first, second] = states();
    let (mut seed, mut fallen_back, mut unchanged) = (7, 0, 0);
    let trials = trials(500);
    for number in 0..trials {
        let path = scratch.join(number.to_string());
        first.save(&path).unwrap();
        let older = scratch.join(format!("{number}.1"));
        fs::rename(&path, &older).unwrap();
        second.save(&path).unwrap();
        let before = contents(&path);
        let what = damage(&path, &mut seed);
        let (found, left_out) = TrainingState::load_newest(&path).expect(&what);
        if contents(&path) == before {
            unchanged += 1;
            assert!(found == second && left_out.is_empty(), "{what}");
        } else {
            fallen_back += 1;
            assert!(
                found == first && left_out.len() == 2,
                "{what}: {left_out:?}"
            );
            // What is damaged is not in the way of the training that goes on.
            found.save(&path).expect(&what);
            assert!(TrainingState::load(&path).expect(&what) == first, "{what}");
        }
        for path in [path, older] {
            fs::remove_dir_all(path).unwrap();
        }
    }
    println!("{trials} damages, {unchanged} of which changed nothing");
    assert!(
        fallen_back > trials * 4 / 5,
        "{fallen_back} and {unchanged}"
    );
}

fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let paths = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut all: Vec<(PathBuf, Vec<u8>)> = paths
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect();
    all.sort();
    all
}

/// The folder that the process below saves in, and where in it.
const FOLDER: &str = "PHALANX_TEST_SAVE_IN";
const TARGET: &str = "PHALANX_TEST_SAVE_TO";

/// What is traced: a process that replaces the checkpoint `c` by `new`. It does nothing as a test of its own.
#[test]
fn a_save_to_be_traced() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let folder = Path::new(&folder);
    let state = TrainingState::load(folder.join("new")).unwrap();
    let target = std::env::var(TARGET).unwrap();
    let saved = match target.ends_with(".safetensors") {
        true => state.save_weights(folder.join(target)),
        false => state.save(folder.join(target)),
    };
    fs::write(
        folder.join("answer"),
        if saved.is_ok() { "saved" } else { "refused" },
    )
    .unwrap();
}

/// What is killed: a process that saves three states in turns, and writes down the number of each save that was answered. It does nothing
/// as a test of its own.
#[test]
fn saves_to_be_killed() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let folder = Path::new(&folder);
    let load = |number: usize| TrainingState::load(folder.join(format!("state-{number}"))).unwrap();
    let states = [load(0), load(1), load(2)];
    for number in 0.. {
        states[number % 3].save(folder.join("c")).unwrap();
        fs::write(folder.join("answered.new"), number.to_string()).unwrap();
        fs::rename(folder.join("answered.new"), folder.join("answered")).unwrap();
    }
}

/// The number of the last save that was answered, once there is one.
fn answered(folder: &Path) -> Option<usize> {
    let text = fs::read_to_string(folder.join("answered")).ok()?;
    Some(text.parse().unwrap())
}

#[test]
fn what_was_answered_survives_a_kill_at_any_moment() {
    let scratch = scratch("kills");
    let folder = fs::canonicalize(&scratch).unwrap();
    let states: [TrainingState; 3] = states();
    for (number, state) in states.iter().enumerate() {
        state.save(folder.join(format!("state-{number}"))).unwrap();
    }
    let (mut seed, mut during) = (11, 0);
    let trials = trials(100);
    for trial in 0..trials {
        let _ = fs::remove_file(folder.join("answered"));
        let program = std::env::current_exe().unwrap();
        let mut saving = Command::new(program)
            .args(["--exact", "saves_to_be_killed", "--test-threads", "1"])
            .env(FOLDER, &folder)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let begun = std::time::Instant::now();
        while answered(&folder).is_none() {
            assert!(
                begun.elapsed().as_secs() < 120,
                "no save within two minutes"
            );
            std::thread::yield_now();
        }
        let wait = random(&mut seed, 20_000);
        std::thread::sleep(std::time::Duration::from_micros(wait as u64));
        saving.kill().unwrap();
        saving.wait().unwrap();
        let last = answered(&folder).unwrap();
        let (found, left_out) = TrainingState::load_newest(folder.join("c")).unwrap();
        // The kill may have come after a save and before its answer was written down.
        let is = |number: usize| found == states[number % 3];
        assert!(
            is(last) || is(last + 1),
            "trial {trial}, after save {last}: {left_out:?}"
        );
        during += usize::from(!is(last));
    }
    println!("{trials} kills, {during} between a save and its answer");
}

/// The calls that are recorded: those that change what is on a disk, and that which makes files.
fn recorded() -> String {
    format!("trace={},openat", CHANGING.join(","))
}

/// The process above under strace; `None` where there is no strace.
fn traced(folder: &Path, target: &str, options: &[String]) -> Option<()> {
    let status = Command::new("strace")
        .args(["-f", "-qq", "-y", "-s", "0", "-o"])
        .arg(folder.join("log"))
        .args(options)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "a_save_to_be_traced", "--test-threads", "1"])
        .env(FOLDER, folder)
        .env(TARGET, target)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status();
    status.ok().map(drop)
}

/// The calls of a save in the folder, by name with the path.
fn calls_of(folder: &Path) -> Vec<(String, String)> {
    let log = fs::read_to_string(folder.join("log")).unwrap();
    let shown = folder.display().to_string();
    let calls = log.lines().filter_map(|line| {
        let (_, call) = line.split_once(' ')?;
        let (name, arguments) = call.trim_start().split_once('(')?;
        let is_ours =
            arguments.contains(&format!("{shown}/")) || arguments.contains(&format!("{shown}>"));
        let is_read = name == "openat" && !arguments.contains("O_CREAT");
        (is_ours && !is_read && !arguments.contains("answer"))
            .then(|| (name.to_owned(), arguments.to_owned()))
    });
    calls.collect()
}

/// The calls that change what is on a disk.
const CHANGING: [&str; 8] = [
    "write",
    "fallocate",
    "fsync",
    "mkdir",
    "rename",
    "renameat2",
    "unlink",
    "rmdir",
];

/// What is found after a fault is the state before or the one that was saved. On a disk that lies, which claims to have written what
/// it has not, nothing can be saved, and that is seen.
fn check_found(
    folder: &Path,
    [old, new]: [&TrainingState; 2],
    lies: bool,
    saved: bool,
    fault: &str,
) {
    let found = TrainingState::load_newest(folder.join("c"));
    let is_one = |found: &TrainingState| found == old || found == new;
    if lies {
        return assert!(found.map_or(true, |(found, _)| is_one(&found)), "{fault}");
    }
    let (found, left_out) = found.unwrap_or_else(|error| panic!("{fault}: {error}"));
    assert!(left_out.is_empty(), "{fault}: {left_out:?}");
    assert!(is_one(&found), "{fault}");
    assert!(!saved || found == *new, "{fault} was answered and is lost");
}

#[test]
fn an_interrupted_or_refused_save_loses_nothing() {
    let scratch = scratch("faults");
    let folder = fs::canonicalize(&scratch).unwrap();
    let [old, new] = states();
    new.save(folder.join("new")).unwrap();
    let prepare = || {
        let leftovers = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        for path in leftovers.filter(|path| !path.ends_with("new")) {
            let _ = fs::remove_dir_all(&path);
            let _ = fs::remove_file(&path);
        }
        old.save(folder.join("c")).unwrap();
    };
    prepare();
    let all = recorded();
    let is_there = traced(&folder, "c", &["-e".into(), all.clone()]).is_some();
    if !is_there || !folder.join("answer").exists() {
        phalanx_testkit::skip(
            "faults need the package strace, and to be allowed to trace processes",
        );
        return;
    }
    // Each call of each kind, so that none is left out whatever their number is.
    let (mut faults, mut refused) = (0, 0);
    for call in CHANGING {
        for fault in ["signal=KILL", "error=EIO", "error=ENOSPC", "retval=1"] {
            // Only a write can be short.
            if fault == "retval=1" && call != "write" {
                continue;
            }
            for number in 1.. {
                prepare();
                let inject = format!("inject={call}:{fault}:when={number}");
                let options = ["-e".into(), all.clone(), "-e".into(), inject.clone()];
                traced(&folder, "c", &options).unwrap();
                let log = fs::read_to_string(folder.join("log")).unwrap();
                let was_hit = log.contains("INJECTED") || log.contains("killed by SIGKILL");
                let answer = fs::read_to_string(folder.join("answer")).unwrap_or_default();
                let lies = fault == "retval=1" && was_hit;
                check_found(&folder, [&old, &new], lies, answer == "saved", &inject);
                if !was_hit {
                    break;
                }
                faults += 1;
                if lies {
                    continue;
                }
                refused += usize::from(answer == "refused");
                // The next save is not in the way of what is left.
                new.save(folder.join("c"))
                    .unwrap_or_else(|error| panic!("{inject}: {error}"));
            }
        }
    }
    println!("{faults} faults, {refused} of which the save told");
    assert!(faults > 60 && refused > 10, "{faults} {refused}");
}

/// The steps of a save, such as `fsync .c.saving`: its calls with names in the folder, those of the same step in a row once.
fn steps_of(folder: &Path) -> Vec<String> {
    let shown = format!("{}/", folder.display());
    let done = |(_, arguments): &(String, String)| !arguments.contains(" = -1 ");
    let calls = calls_of(folder).into_iter().filter(done);
    let calls = calls.map(|(call, arguments)| {
        let call = match &*call {
            "openat" => "create",
            "renameat2" if arguments.contains("RENAME_EXCHANGE") => "exchange",
            "renameat" | "renameat2" => "rename",
            other => other,
        }
        .to_owned();
        let ends = ['"', '>', '<', ','];
        let mut names: Vec<String> = arguments
            .split(&shown)
            .skip(1)
            .map(|rest| rest[..rest.find(ends).unwrap_or(rest.len())].to_owned())
            .collect();
        if names.is_empty() {
            names.push(".".to_owned());
        }
        // What a call answers is shown with the path of what it opened.
        names.dedup();
        let names = names.iter().map(|name| without_process(name));
        std::iter::once(call)
            .chain(names)
            .collect::<Vec<_>>()
            .join(" ")
    });
    let mut steps: Vec<String> = calls.collect();
    steps.dedup();
    steps
}

/// `.c.saving-0a0b-17-0/x` as `.c.saving/x`.
fn without_process(name: &str) -> String {
    let Some((before, after)) = name.split_once(".saving-") else {
        return name.to_owned();
    };
    let file = after.split_once('/').map(|(_, file)| format!("/{file}"));
    format!("{before}.saving{}", file.unwrap_or_default())
}

/// What the files of a checkpoint are filled by: the manifest comes last, and then all of them are synced.
fn filled(staging: &str) -> Vec<String> {
    let files = [
        "weights.safetensors",
        "optimizer.safetensors",
        "history.jsonl",
        "checkpoint.json",
    ];
    let step = |step: &str, file: &str| format!("{step} {staging}/{file}");
    let written = files.map(|file| [step("create", file), step("write", file)]);
    let synced = files.map(|file| step("fsync", file));
    written.into_iter().flatten().chain(synced).collect()
}

/// The steps that a save must have, from a folder with what it finds there; those that remove what it replaced are left out.
fn check_steps(name: &str, target: &str, prepare: impl Fn(&Path), expected: &[String]) {
    let scratch = scratch(&format!("steps-{name}"));
    let folder = fs::canonicalize(&scratch).unwrap();
    let [old, new] = states();
    new.save(folder.join("new")).unwrap();
    old.save(folder.join("c")).unwrap();
    prepare(&folder);
    let all = recorded();
    let is_there = traced(&folder, target, &["-e".into(), all]).is_some();
    if !is_there || !folder.join("answer").exists() {
        phalanx_testkit::skip("it needs the package strace, and to be allowed to trace processes");
        return;
    }
    let mut steps = steps_of(&folder);
    steps.retain(|step| !step.starts_with("unlink") && !step.starts_with("rmdir"));
    assert_eq!(steps, expected, "{name}");
}

fn steps(text: &[&str]) -> Vec<String> {
    text.iter().map(|step| (*step).to_owned()).collect()
}

/// No sync can be left out and no two steps can change places: the calls are these, in this order, and no others.
#[test]
fn a_save_makes_each_step_durable_before_the_next() {
    let published = ["fsync .c.saving", "exchange .c.saving c", "fsync ."];
    let saved = [
        steps(&["mkdir .c.saving"]),
        filled(".c.saving"),
        steps(&published),
    ];
    check_steps("replace", "c", |_| {}, &saved.concat());
    // Directories above, each in the one before.
    let deep = [
        steps(&["mkdir a", "mkdir a/b", "fsync a", "fsync ."]),
        steps(&["mkdir a/b/.c.saving"]),
        filled("a/b/.c.saving"),
        steps(&[
            "fsync a/b/.c.saving",
            "rename a/b/.c.saving a/b/c",
            "fsync a/b",
        ]),
    ];
    check_steps("deep", "a/b/c", |_| {}, &deep.concat());
    // A save was interrupted where names cannot be exchanged.
    let interrupted =
        |folder: &Path| fs::rename(folder.join("c"), folder.join(".c.before")).unwrap();
    let restored = [steps(&["rename .c.before c", "fsync ."]), saved.concat()];
    check_steps("restored", "c", interrupted, &restored.concat());
    let weights = steps(&[
        "mkdir .w.safetensors.saving",
        "create .w.safetensors.saving/weights.safetensors",
        "write .w.safetensors.saving/weights.safetensors",
        "fsync .w.safetensors.saving/weights.safetensors",
        "rename .w.safetensors.saving/weights.safetensors w.safetensors",
        "fsync .",
    ]);
    check_steps("weights", "w.safetensors", |_| {}, &weights);
}

/// Of a large file the places on the disk are found before it is written, where the disk knows how.
#[test]
fn a_large_file_is_a_checkpoint_or_none() {
    let scratch = scratch("large");
    let folder = fs::canonicalize(&scratch).unwrap();
    let [old, _] = states();
    let compile = Compile {
        optimizer: Sgd::new(0.1).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        ..Compile::default()
    };
    let model = Sequential::new([2048]).add(Dense::new(3072));
    let strategy = OneDeviceStrategy::new().unwrap();
    let new = strategy.compile(model, compile).unwrap();
    let new = new.training_state().unwrap();
    new.save(folder.join("new")).unwrap();
    let all = recorded();
    let faults = [
        ("", "saved"),
        ("fallocate:error=EOPNOTSUPP", "saved"),
        ("fallocate:error=ENOSPC", "saved"),
        ("fallocate:signal=KILL", ""),
        ("fsync:error=EIO", "refused"),
        ("fsync:signal=KILL", ""),
    ];
    for (fault, expected) in faults {
        let _ = fs::remove_file(folder.join("answer"));
        old.save(folder.join("c")).unwrap();
        let mut options = vec!["-e".to_owned(), all.clone()];
        if !fault.is_empty() {
            options.extend(["-e".to_owned(), format!("inject={fault}:when=1")]);
        }
        let is_there = traced(&folder, "c", &options).is_some();
        if !is_there || (fault.is_empty() && !folder.join("answer").exists()) {
            phalanx_testkit::skip(
                "it needs the package strace, and to be allowed to trace processes",
            );
            return;
        }
        let log = fs::read_to_string(folder.join("log")).unwrap();
        assert!(log.contains("fallocate("), "{fault}");
        let answer = fs::read_to_string(folder.join("answer")).unwrap_or_default();
        assert_eq!(answer, expected, "{fault}");
        let found = TrainingState::load(folder.join("c")).unwrap();
        let is_new = expected == "saved";
        assert!(found == if is_new { &new } else { &old }.clone(), "{fault}");
        TrainingState::remove(folder.join("c")).unwrap();
    }
}
