//! Disks that are full of something else when the first worker saves a checkpoint.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use phalanx_cluster::launch::Launch;
use phalanx_testkit::Random;

use super::run::{Run, begun};
use super::{CHECKPOINT, GO, seeds};

/// Where the small disk of the process below is, and the seed of what is done.
const DISK: &str = "PHALANX_TEST_SMALL_DISK";
const SEED: &str = "PHALANX_TEST_DISK_SEED";

/// A process that has a small disk of its own, whose workers train on it; nothing where this is no such process.
#[test]
fn on_a_small_disk() {
    let Some(disk) = std::env::var_os(DISK) else {
        return;
    };
    let seed: u64 = std::env::var(SEED).unwrap().parse().unwrap();
    let (disk, mut random) = (PathBuf::from(disk), Random::new(seed));
    let workers = 2 + (seed % 3) as usize;
    let after = Duration::from_millis(random.below(1500));
    let run = Run::new(&format!("disk-{seed}"));
    // Saves within a window of accumulated gradients exchange them, so the unbroken run saves, too.
    let unbroken = Run::new(&format!("disk-whole-{seed}"));
    let expected = unbroken.train_to_end(saving(&unbroken, workers, &unbroken.folder));
    let launch = || saving(&run, workers, &disk);
    let running = run.start(launch());
    run.until("a worker trains", || {
        running.is_finished() || begun(&run.folder, "") > 0
    });
    thread::sleep(after);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| fill(&disk, &is_over));
        run.until("a checkpoint is refused", || {
            running.is_finished() || run.lines.text().contains("No space left")
        });
        is_over.store(true, Ordering::Relaxed);
    });
    std::fs::remove_file(disk.join("filler")).unwrap();
    std::fs::write(run.folder.join(GO), "").unwrap();
    run.until("the end", || running.is_finished());
    let mut outcome = running.join().unwrap();
    let refused = run.lines.text().contains("No space left");
    let first = outcome.exit_code();
    // Whoever started it starts it again, when there is space.
    if outcome.exit_code() != 0 {
        assert!(refused, "{outcome:?} {}", run.lines.text());
        let again = run.start(launch());
        run.until("the end of the next", || again.is_finished());
        outcome = again.join().unwrap();
    }
    let lines = run.lines.text();
    assert_eq!(outcome.exit_code(), 0, "{outcome:?} {lines}");
    assert_eq!(run.outs(workers), expected, "seed {seed}: {lines}");
    assert!(expected.iter().all(|out| out.contains("epoch 4 47")));
    eprintln!(
        "seed {seed}: {workers} workers, full after {after:?}, refused {refused}, first ended with {first}"
    );
}

/// A launch whose first worker saves in a folder.
fn saving(run: &Run, workers: usize, folder: &Path) -> Launch {
    let mut launch = run.launch(workers);
    let at = format!("{CHECKPOINT}={}", folder.join("checkpoint").display());
    launch.program.insert(1, at.into());
    launch
}

/// Takes all the space there is, and what others free of it, until it is over.
fn fill(disk: &Path, is_over: &AtomicBool) {
    let open = |path: &Path| OpenOptions::new().create(true).append(true).open(path);
    let mut filler: File = open(&disk.join("filler")).unwrap();
    while !is_over.load(Ordering::Relaxed) {
        if filler.write(&[0; 4096]).is_err() {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A refused checkpoint ends the training, or it goes on when there is space; in the end nothing is lost.
#[test]
fn full_disks_change_nothing() {
    for seed in seeds(2) {
        let folder = std::env::temp_dir().join(format!("phalanx-disk-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mount = "mount -t tmpfs -o size=64k none \"$PHALANX_TEST_SMALL_DISK\"";
        let run = |script: &str| {
            let mut command = Command::new("unshare");
            command.args(["--user", "--map-root-user", "--mount", "sh", "-ec", script]);
            command.arg(std::env::current_exe().unwrap());
            command.env(DISK, &folder).env(SEED, seed.to_string());
            command.stdin(Stdio::null()).output()
        };
        if !run(mount).is_ok_and(|output| output.status.success()) {
            phalanx_testkit::skip("a small disk needs unshare, and to be allowed to mount");
            return;
        }
        let inside = "exec \"$0\" --exact recovery::full_disk::on_a_small_disk --nocapture";
        let output = run(&format!("{mount}\n{inside}")).unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        let shown = told.lines().filter(|line| line.starts_with("seed "));
        shown.for_each(|line| eprintln!("{line}"));
        assert!(output.status.success(), "seed {seed}: {told}");
        // Empty: what was in it has ended with the process.
        std::fs::remove_dir(&folder).unwrap();
    }
}
