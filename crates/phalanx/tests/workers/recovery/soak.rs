//! One training that is hit again and again: what its processes hold does not grow. PHALANX_TEST_SOAK is how many seconds it is hit,
//! each PHALANX_TEST_SOAK_EACH of them.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use phalanx_testkit::{Random, asked_number};

use super::run::{Run, begun};
use super::{GO, LENGTH, Length, alone, unbroken_of};

const WORKERS: usize = 3;
/// The worker that nothing is done to: it outlives all the others.
const SURVIVOR: usize = 1;
/// What a test run has.
const USUAL: Duration = Duration::from_secs(9);
const USUAL_EACH: Duration = Duration::from_secs(3);
/// A slope over less time than this is noise.
const SHORTEST_SLOPE: Duration = Duration::from_secs(1800);
/// 201 batches: about 24 s, as slow as examples are here.
const ROWS: usize = 1407;

/// What a process holds.
#[derive(Debug, Clone, Copy)]
struct Held {
    hours: f64,
    kib: f64,
    threads: f64,
    files: usize,
}

impl Held {
    fn by(process: i32, since: Instant) -> Self {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let number = |name: &str| -> f64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let word = line.and_then(|line| line.split_whitespace().next());
            word.unwrap().parse().unwrap()
        };
        Self {
            hours: since.elapsed().as_secs_f64() / 3600.0,
            kib: number("VmRSS:"),
            threads: number("Threads:"),
            files: fs::read_dir(format!("/proc/{process}/fd")).unwrap().count(),
        }
    }
}

/// The growth of memory by least squares, as a part of its mean, in an hour.
fn slope(samples: &[Held]) -> f64 {
    let mean =
        |of: &dyn Fn(&Held) -> f64| samples.iter().map(of).sum::<f64>() / samples.len() as f64;
    let (hours, kib) = (mean(&|held| held.hours), mean(&|held| held.kib));
    let covariance = mean(&|held| (held.hours - hours) * (held.kib - kib));
    covariance / mean(&|held| (held.hours - hours).powi(2)) / kib
}

/// Kills one of the others, or both, or stops one; whether somebody was killed.
fn hit(run: &Run, random: &mut Random) -> bool {
    let others = [0, 2];
    let one = others[random.below(2) as usize];
    match random.below(6) {
        0 => others.map(|rank| run.signal(rank, "-KILL")).contains(&true),
        1 => {
            run.signal(one, "-STOP");
            thread::sleep(Duration::from_millis(500 + random.below(9500)));
            run.signal(one, "-CONT");
            false
        }
        _ => run.signal(one, "-KILL"),
    }
}

#[test]
fn a_training_that_is_hit_again_and_again_holds_no_more_and_ends_as_if_it_were_not() {
    let _alone = alone();
    let seconds = |name, usual| asked_number(name).map_or(usual, Duration::from_secs);
    let lasts = seconds("PHALANX_TEST_SOAK", USUAL);
    let each = seconds("PHALANX_TEST_SOAK_EACH", USUAL_EACH);
    let epochs = 2 + lasts.as_secs() as usize / 24;
    let length = Length { epochs, rows: ROWS };
    let mut run = Run::new("soak");
    run.patience += lasts;
    let mut launch = run.launch(WORKERS);
    launch.max_restarts = u32::MAX;
    launch
        .program
        .insert(1, format!("{LENGTH}={length}").into());
    let running = run.start(launch);
    run.until("all train", || {
        (0..WORKERS).all(|rank| begun(&run.folder, &rank.to_string()) > 0)
    });
    let survivor = run.processes(SURVIVOR)[0];
    // What is done for the first time, and stays, is done now.
    let first = Instant::now();
    run.signal(2, "-KILL");
    run.until("a recovery", || !run.lines.recoveries(&[first]).is_empty());
    thread::sleep(each);
    let (start, mut random) = (Instant::now(), Random::new(1));
    let held = || Held::by(survivor, start);
    let (mut samples, mut killed) = (vec![held()], Vec::new());
    while start.elapsed() < lasts {
        if hit(&run, &mut random) {
            killed.push(Instant::now());
        }
        thread::sleep(each);
        samples.push(held());
    }
    // Connections of workers that were just lost may be there still.
    run.until("the survivor holds what it held", || {
        let now = held();
        now.files <= samples[0].files && now.threads <= samples[0].threads
    });
    fs::write(run.folder.join(GO), "").unwrap();
    run.until("the end", || running.is_finished());
    let outcome = running.join().unwrap();
    assert_eq!(outcome.exit_code(), 0, "{outcome:?} {}", run.lines.text());
    let recovered = run.lines.recoveries(&killed);
    let growth = slope(&samples[samples.len() / 4..]);
    eprintln!(
        "{} hits, {} of them kills: recoveries took {:?} of {:?}, the longest {:?}; memory grows by {:.2} % an hour: {samples:?}",
        samples.len(),
        killed.len(),
        recovered.iter().sum::<Duration>(),
        start.elapsed(),
        recovered.iter().max(),
        100.0 * growth,
    );
    assert!(lasts < SHORTEST_SLOPE || growth <= 0.01, "{samples:?}");
    let expected = unbroken_of(WORKERS, length);
    for out in run.outs(WORKERS) {
        assert_eq!(out, expected, "{}", run.lines.text());
    }
}
