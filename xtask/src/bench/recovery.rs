//! `cargo xtask bench recovery`: how long it takes from the SIGKILL of one of two workers until its replacement has made a step, ours and
//! torchrun's in turns.

use std::fmt::Write;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::peer::{self, Peer};
use super::table::OURS;
use super::{BUILD_LIMIT, ROUND_LIMIT, machine, parse_options, write};
use crate::process::run;
use crate::workspace::Workspace;

const MODEL: [&str; 2] = ["mlp", "64"];
/// Steps of each worker before one of them is killed.
const BEFORE: usize = 300;

/// A step of a worker's file: its process, its number and when it was done, in seconds since 1970.
#[derive(Debug, PartialEq)]
struct Step {
    process: u32,
    number: i64,
    done: f64,
}

/// What a kill cost.
#[derive(Debug, PartialEq)]
struct Recovery {
    seconds: f64,
    /// Steps that were done before and are done again.
    again: i64,
}

/// A launcher that ends with this, and its workers with it.
struct Launched {
    launcher: Child,
    folder: PathBuf,
}

/// Times ours and torchrun; prints a table, and keeps it in `bench/results` if asked to.
pub(crate) fn recovery(arguments: &[&str]) -> Result<(), String> {
    let options = parse_options(arguments)?;
    let workspace = Workspace::load()?;
    super::build(&workspace)?;
    let mut build = workspace.cargo();
    build.args(["build", "--release", "--locked", "--quiet"]);
    build.args(["--package", "phalanx-cli"]);
    let log = workspace.log("bench-build-cli");
    run(&mut build, &log, BUILD_LIMIT)?;
    let mut peers = peer::all(&workspace, "recovery", &options.pythons)?;
    peers.retain(|peer| [OURS, "torch"].contains(&peer.name));
    let rounds = if options.quick { 3 } else { 20 };
    let mut all: Vec<Vec<Recovery>> = peers.iter().map(|_| Vec::new()).collect();
    // The first of each does not count: it fills caches.
    for round in 0..=rounds {
        for (peer, recoveries) in peers.iter().zip(&mut all) {
            let one = kill_once(&workspace, peer)?;
            eprintln!("kill {round} of {rounds}: {}, {one:?}", peer.name);
            recoveries.extend((round > 0).then_some(one));
        }
    }
    let names = peers.iter().map(|peer| peer.name);
    let table = table(&names.zip(&all).collect::<Vec<_>>());
    println!("{table}");
    if options.write {
        let machine = machine::description();
        let page = format!(
            "# Recovery\n\nWritten by `cargo xtask bench recovery --write`: {machine}. Two workers train an MLP 784-128-10, batch 64 for each; \
             one is killed by SIGKILL, the programs take turns. Ours goes on from the survivor's state; torchrun starts both processes \
             again from a checkpoint, which the script writes every 50 steps, and soon before the kill.\n\n{table}"
        );
        write(&workspace, "recovery.md", &page)?;
    }
    Ok(())
}

/// Starts two workers and kills the second.
fn kill_once(workspace: &Workspace, peer: &Peer) -> Result<Recovery, String> {
    let launched = Launched::start(workspace, peer)?;
    launched.until("both train", || {
        (0..2).all(|rank| launched.steps(rank).len() >= BEFORE)
    })?;
    let victim = launched.steps(1).last().map(|step| step.process);
    let victim = victim.ok_or("no step of worker 1")?;
    let killed = SystemTime::now().duration_since(UNIX_EPOCH);
    let killed = killed.map_err(|error| error.to_string())?.as_secs_f64();
    signal(victim, "-KILL")?;
    let others = || {
        let mut steps = launched.steps(1).into_iter();
        steps.find(|step| step.process != victim)
    };
    launched.until("the replacement trains", || others().is_some())?;
    let first = others().ok_or("no step of the replacement")?;
    Ok(cost(killed, &launched.steps(0), &first))
}

/// What a kill cost, by the steps of the survivor and the first one of the replacement.
fn cost(killed: f64, survivor: &[Step], first: &Step) -> Recovery {
    let before = survivor.iter().filter(|step| step.done <= killed);
    let last = before.map(|step| step.number).max().unwrap_or(0);
    Recovery {
        seconds: first.done - killed,
        again: (last + 1 - first.number).max(0),
    }
}

impl Launched {
    fn start(workspace: &Workspace, peer: &Peer) -> Result<Self, String> {
        let folder = workspace.log(&format!("bench-recovery-{}", peer.name));
        let failed = |error: std::io::Error| format!("{}: {error}", peer.name);
        // It may not be there.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).map_err(failed)?;
        let said = File::create(folder.join("said")).map_err(failed)?;
        let mut command = launcher(workspace, peer, &folder);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let launcher = command.stderr(said).spawn().map_err(failed)?;
        Ok(Self { launcher, folder })
    }

    /// What a worker has done so far.
    fn steps(&self, rank: usize) -> Vec<Step> {
        let text = fs::read_to_string(self.folder.join(rank.to_string()));
        // The file comes with the first step.
        parse(&text.unwrap_or_default())
    }

    fn until(&self, what: &str, holds: impl Fn() -> bool) -> Result<(), String> {
        let start = Instant::now();
        while !holds() {
            if start.elapsed() > ROUND_LIMIT {
                let said = fs::read_to_string(self.folder.join("said"));
                return Err(format!("not yet: {what}\n{}", said.unwrap_or_default()));
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        // Asked to end, it ends its workers, which a killed one may not.
        if signal(self.launcher.id(), "-TERM").is_err() {
            let _ = self.launcher.kill();
        }
        let _ = self.launcher.wait();
    }
}

fn signal(process: u32, signal: &str) -> Result<(), String> {
    let sent = Command::new("kill")
        .args([signal, &process.to_string()])
        .status();
    match sent {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("kill {signal} {process}: {status}")),
        Err(error) => Err(format!("kill: {error}")),
    }
}

fn launcher(workspace: &Workspace, peer: &Peer, folder: &Path) -> Command {
    let root = &workspace.root;
    let mut command;
    if peer.name == OURS {
        command = Command::new(root.join("target/release/phalanx"));
        command.args(["launch", "--workers", "2", "--max-restarts", "3", "--logs"]);
        command.arg(folder.join("logs")).arg("--");
        command.arg(root.join("target/release/bench-workers"));
        command.args(MODEL).arg("recovery");
    } else {
        // Its Python, which has torchrun as a module.
        command = Command::new(peer.command().get_program());
        command.args(["-m", "torch.distributed.run", "--standalone"]);
        command.args(["--nproc-per-node", "2", "--max-restarts", "3"]);
        command.arg(root.join("bench/peers/recovery_torch.py"));
        command.args(MODEL).arg("2");
        // With the launcher's store, new workers find the addresses of the old ones there: issue 135712 of PyTorch.
        command.env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1");
        command.env("OMP_NUM_THREADS", "1");
    }
    command.arg(folder);
    command
}

/// The whole lines of a worker's file.
fn parse(text: &str) -> Vec<Step> {
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let step = |line: &str| {
        let mut words = line.split(' ');
        Some(Step {
            process: words.next()?.parse().ok()?,
            number: words.next()?.parse().ok()?,
            done: words.next()?.parse().ok()?,
        })
    };
    whole.lines().filter_map(step).collect()
}

fn table(all: &[(&str, &Vec<Recovery>)]) -> String {
    let mut text = String::from(
        "| framework | kills | until the replacement's first step, median | longest | steps done again, median |\n|---|---:|---:|---:|---:|\n",
    );
    for (name, recoveries) in all {
        let mut seconds: Vec<f64> = recoveries.iter().map(|one| one.seconds).collect();
        let mut again: Vec<i64> = recoveries.iter().map(|one| one.again).collect();
        seconds.sort_by(f64::total_cmp);
        again.sort_unstable();
        let middle = recoveries.len() / 2;
        if let (Some(median), Some(longest), Some(again)) =
            (seconds.get(middle), seconds.last(), again.get(middle))
        {
            let kills = recoveries.len();
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "| {name} | {kills} | {median:.2} s | {longest:.2} s | {again} |"
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_whole_lines() {
        let steps = parse("7 1 10.5\n7 2 11.0\n7 3 11");
        assert_eq!(steps.len(), 2, "{steps:?}");
        assert_eq!(
            steps[1],
            Step {
                process: 7,
                number: 2,
                done: 11.0
            }
        );
        assert!(parse("7 1 10.5").is_empty());
    }

    #[test]
    fn a_kill_costs_the_time_to_the_first_step_and_the_steps_since_the_state() {
        let survivor = parse("1 1 10\n1 2 11\n1 3 12\n2 2 20\n");
        let first = &parse("3 2 19.5\n")[0];
        let cost_of = cost(12.5, &survivor, first);
        assert_eq!((cost_of.seconds, cost_of.again), (7.0, 2));
        // A step in flight is no step that was done.
        assert_eq!(cost(12.5, &survivor, &parse("3 4 13\n")[0]).again, 0);
    }

    #[test]
    fn a_row_has_medians() {
        let one = |seconds, again| Recovery { seconds, again };
        let text = table(&[(OURS, &vec![one(0.3, 0), one(0.1, 1), one(0.2, 0)])]);
        assert!(text.contains("| 3 | 0.20 s | 0.30 s | 0 |"), "{text}");
    }
}
