//! What a job would take, before it is submitted: memory against the machine, time from a measured step or from FLOPs, and cost by
//! prices that the user gives.

use std::fmt::Write as _;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use phalanx_cluster::TaskKind;
use phalanx_launch::executor::{phalanx, task_variables};
use phalanx_launch::spec::{ExecutorKind, Plan, Program, Role, Spec};
use phalanx_launch::usage::machine_memory;
use phalanx_yaml::Bytes;
use serde_json::{Value as Json, json};

use super::prices::Prices;
use super::submit::machine_gpus;

/// How long `phalanx estimate` or some measured steps may take.
const WITHIN: Duration = Duration::from_secs(300);

/// What a user wants to know beside the memory.
pub(super) struct EstimateRequest<'a> {
    pub(super) prices: Option<&'a Prices>,
    /// Whether a step is timed here.
    pub(super) measure: bool,
}

/// A job whose program is a training file.
struct Training<'a> {
    spec: &'a Spec,
    plan: &'a Plan,
    directory: &'a Path,
    file: &'a str,
    flags: Flags,
}

/// What the arguments of `phalanx train` say of its length and its settings.
#[derive(Debug, Default, PartialEq)]
struct Flags {
    set: Vec<String>,
    epochs: Option<u64>,
    steps_per_epoch: Option<u64>,
}

impl Flags {
    fn read(args: &[String]) -> Self {
        let mut flags = Self::default();
        let mut rest = args.iter();
        while let Some(arg) = rest.next() {
            let (name, value) = match arg.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (arg.as_str(), None),
            };
            if !["--set", "--epochs", "--steps-per-epoch"].contains(&name) {
                continue;
            }
            let Some(value) = value.or_else(|| rest.next().cloned()) else {
                break;
            };
            match name {
                "--set" => flags.set.push(value),
                "--epochs" => flags.epochs = value.parse().ok(),
                _ => flags.steps_per_epoch = value.parse().ok(),
            }
        }
        flags
    }
}

/// The estimate of a job, or why there is none.
pub(super) fn of(spec: &Spec, plan: &Plan, directory: &Path, wanted: &EstimateRequest<'_>) -> Json {
    let Program::Training { file } = &plan.program else {
        return json!({"none": "only a training file (train.yaml) is estimated, not a program"});
    };
    let args = plan.tasks.first().map_or(&[][..], |task| &task.args);
    let training = Training {
        spec,
        plan,
        directory,
        file,
        flags: Flags::read(args),
    };
    match training.estimate(wanted) {
        Ok(estimate) => estimate,
        Err(why) => json!({"none": why}),
    }
}

impl Training<'_> {
    fn estimate(&self, wanted: &EstimateRequest<'_>) -> Result<Json, String> {
        let whole = self.phalanx("estimate", &[], "estimate")?;
        let number = |name: &str| whole[name].as_u64().unwrap_or(0);
        let workers = self.plan.workers().max(1) as u64;
        // Of one process: where the batch is a replica's, each worker has one.
        let batches = match whole["per_replica"] == true {
            true => workers,
            false => 1,
        };
        let share = match workers == batches {
            true => whole.clone(),
            false => {
                let rows = number("batch_size").div_ceil(workers).to_string();
                self.phalanx("estimate", &["--batch-size", &rows], "estimate")?
            }
        };
        let steps = self.steps(&whole, batches);
        let flops = number("flops") * batches;
        let needed = share["total_bytes"].as_u64().unwrap_or(0);
        let there = self.memory();
        let mut estimate = json!({
            "memoryBytes": needed,
            "memoryThereBytes": there,
            "fits": there.is_none_or(|there| needed <= there),
            "steps": steps,
            "stepFlops": flops,
        });
        let step = match wanted.measure {
            true => Some((self.measured(workers, batches)?, "a step measured here")),
            false => wanted
                .prices
                .and_then(|prices| self.by_flops(prices, flops)),
        };
        let (Some((step, by)), Some(steps)) = (step, steps) else {
            return Ok(estimate);
        };
        let search = self.spec.hyperparameters.as_ref();
        let trials = search.map_or(1, |search| search.max_trials);
        let in_turn = trials.div_ceil(self.at_once());
        // Of one trial, if the machine were its own: then it is paid for a part of the time only.
        let alone = step * steps as f64;
        let slower = self.slower(wanted);
        let (step, seconds) = (step * slower, alone * slower);
        estimate["stepSeconds"] = json!(step);
        estimate["seconds"] = json!(seconds * in_turn as f64);
        estimate["by"] = json!(by);
        if let Some(prices) = wanted.prices {
            match prices.of_hour(self.spec) {
                Ok(hour) => {
                    let cost = hour * alone * trials as f64 / 3600.0;
                    estimate["cost"] = json!(cost);
                    estimate["currency"] = json!(prices.currency);
                }
                Err(why) => estimate["noCost"] = json!(why),
            }
        }
        Ok(estimate)
    }

    /// Steps of the whole training, each of `batches` of one process; not known of data without an end or a count.
    fn steps(&self, whole: &Json, batches: u64) -> Option<u64> {
        let epochs = self.flags.epochs.or(whole["epochs"].as_u64())?;
        let given = self.flags.steps_per_epoch;
        // An epoch of more steps than the data have goes on with their next one.
        let given = given.or(whole["steps_per_epoch"].as_u64());
        let of_data = || Some(whole["batches"].as_u64()?.div_ceil(batches));
        Some(epochs * given.or_else(of_data)?)
    }

    /// Seconds of a step of these FLOPs, if the prices say how many all workers compute.
    fn by_flops(&self, prices: &Prices, flops: u64) -> Option<(f64, &'static str)> {
        let rate: Option<f64> = self.trainers().map(|role| prices.flops(role)).sum();
        let by = "the FLOPs of a second that the prices give";
        Some((flops as f64 / rate?, by))
    }

    fn trainers(&self) -> impl Iterator<Item = &Role> {
        let trains = |role: &&Role| matches!(role.kind, TaskKind::Chief | TaskKind::Worker);
        self.spec.roles.iter().filter(trains)
    }

    /// The bytes that each worker has: of its GPU, of its machine, or its share of this machine.
    fn memory(&self) -> Option<u64> {
        let role = self.spec.master()?;
        let of_gpu = role
            .accelerator
            .as_ref()
            .filter(|gpu| gpu.count > 0)
            .and_then(|gpu| of_accelerator(&gpu.kind));
        if self.spec.ours.executor != ExecutorKind::Local {
            let machine = role.machine.as_ref().map(|machine| machine.memory);
            return of_gpu.or(self.spec.ours.memory).or(machine);
        }
        let workers = self.plan.workers().max(1);
        machine_memory().map(|all| all / (workers * self.at_once()) as u64)
    }

    /// How many trials run at the same time.
    fn at_once(&self) -> usize {
        let memory = machine_memory().unwrap_or(u64::MAX);
        let gpus = machine_gpus();
        self.plan.trials_at_once(self.spec, memory, gpus)
    }

    /// How much longer a step takes than was found: one that was timed had all of this machine, which trials at the same time share.
    fn slower(&self, wanted: &EstimateRequest<'_>) -> f64 {
        match self.spec.ours.executor {
            ExecutorKind::Local if wanted.measure => self.at_once() as f64,
            _ => 1.0,
        }
    }

    /// Seconds of a step of `batches` of one process, which is timed: on this machine workers share what it has.
    fn measured(&self, workers: u64, batches: u64) -> Result<f64, String> {
        let folder = std::env::temp_dir().join(format!("phalanx-measure-{}", std::process::id()));
        let path = folder.display().to_string();
        let event = self.phalanx("trace", &["--output", &path], "epoch");
        let _ = std::fs::remove_file(&folder);
        let times = &event?["times"];
        let number = |name: &str| times[name].as_f64().unwrap_or(0.0);
        let step = (number("seconds") - number("compile")) / number("steps").max(1.0);
        let step = step * batches as f64;
        Ok(match self.spec.ours.executor {
            ExecutorKind::Local => step,
            _ => step / workers as f64,
        })
    }

    /// The event of this name that a command of `phalanx` prints for the training file.
    fn phalanx(&self, command: &str, args: &[&str], event: &str) -> Result<Json, String> {
        let mut words = Command::new(phalanx());
        words
            .arg(command)
            .arg(self.file)
            .args(["--progress", "json"])
            .args(args);
        words.args(self.flags.set.iter().flat_map(|set| ["--set", set]));
        words
            .current_dir(self.directory)
            .envs(task_variables(self.spec, self.directory)?);
        let (ok, out, err) = within(&mut words, WITHIN)?;
        let found = out
            .lines()
            .filter_map(|line| serde_json::from_str::<Json>(line).ok());
        let found = found.rev().find(|line| line["event"] == event);
        match found.filter(|_| ok) {
            Some(found) => Ok(found),
            None => Err(format!("phalanx {command} says: {}", err.trim_end())),
        }
    }
}

/// Bytes of memory of an accelerator by AI Platform's name, if it is known.
fn of_accelerator(kind: &str) -> Option<u64> {
    let gigabytes = match kind {
        "NVIDIA_TESLA_P4" => 8,
        "NVIDIA_TESLA_K80" => 12,
        "NVIDIA_TESLA_P100" | "NVIDIA_TESLA_V100" | "NVIDIA_TESLA_T4" => 16,
        "NVIDIA_TESLA_A100" => 40,
        _ => return None,
    };
    Some(gigabytes * 1_000_000_000)
}

/// Runs a command that may not take longer: whether it did well, and what it printed.
fn within(command: &mut Command, limit: Duration) -> Result<(bool, String, String), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let told = |error: std::io::Error| {
        format!("cannot run {program}: {error}; build phalanx-cli beside this program")
    };
    let spawned = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = spawned.map_err(told)?;
    let read = |stream: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stream.map(|mut stream| stream.read_to_end(&mut text));
            String::from_utf8_lossy(&text).into_owned()
        })
    };
    let out = read(child.stdout.take().map(|stream| Box::new(stream) as Box<_>));
    let err = read(child.stderr.take().map(|stream| Box::new(stream) as Box<_>));
    let until = Instant::now() + limit;
    let status = loop {
        match child.try_wait().map_err(told)? {
            Some(status) => break status,
            None if Instant::now() < until => std::thread::sleep(Duration::from_millis(10)),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{program} took longer than {} s", limit.as_secs()));
            }
        }
    };
    let text = |thread: std::thread::JoinHandle<String>| thread.join().unwrap_or_default();
    Ok((status.success(), text(out), text(err)))
}

/// The estimate for people.
pub(super) fn text(estimate: &Json) -> String {
    if let Some(why) = estimate["none"].as_str() {
        return format!("  none: {why}\n");
    }
    let number = |name: &str| estimate[name].as_f64().unwrap_or(0.0);
    let needed = Bytes(number("memoryBytes") as u64);
    let memory = match (
        estimate["memoryThereBytes"].as_u64(),
        estimate["fits"] == true,
    ) {
        (Some(there), true) => format!("{needed} of the {} of each worker", Bytes(there)),
        (Some(there), false) => format!(
            "{needed}, and each worker has {}: it does not fit; lower fit.batch_size, or take machines with more memory",
            Bytes(there)
        ),
        (None, _) => format!("{needed} of each worker"),
    };
    let mut all = format!("  memory  {memory}\n");
    let steps = estimate["steps"].as_u64();
    let steps = steps.map_or("any number of".to_owned(), |steps| steps.to_string());
    let _ = writeln!(
        all,
        "  work    {steps} steps of {:.3e} FLOP",
        number("stepFlops")
    );
    all += &match estimate["by"].as_str() {
        Some(by) => format!(
            "  time    {} by {by}, {:.3e} s\n",
            period(number("seconds")),
            number("stepSeconds")
        ),
        None => {
            "  time    not known; add --measure, or `flops` to the file of --prices\n".to_owned()
        }
    };
    if let Some(cost) = estimate["cost"].as_f64() {
        let currency = estimate["currency"].as_str().unwrap_or_default();
        all += format!("  cost    {cost:.4} {currency}").trim_end();
        all.push('\n');
    } else if let Some(why) = estimate["noCost"].as_str() {
        all += &format!("  cost    not known: {why}\n");
    }
    all
}

fn period(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.1} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_and_settings_are_read_in_both_spellings() {
        let args = [
            "--epochs",
            "3",
            "--set=a.b=1",
            "-x",
            "--set",
            "c=2",
            "--steps-per-epoch=7",
            "--set",
        ];
        let flags = Flags::read(&args.map(str::to_owned));
        let set = vec!["a.b=1".to_owned(), "c=2".to_owned()];
        let expected = Flags {
            set,
            epochs: Some(3),
            steps_per_epoch: Some(7),
        };
        assert_eq!(flags, expected);
    }

    #[test]
    fn what_does_not_fit_is_said_with_what_to_do() {
        let estimate = json!({"memoryBytes": 20_u64 << 30, "memoryThereBytes": 15_u64 << 30, "fits": false, "steps": 5, "stepFlops": 1e9, "by": "x", "seconds": 90.0, "stepSeconds": 18.0, "noCost": "no price"});
        let text = text(&estimate);
        for part in [
            "20.0 GiB, and each worker has 15.0 GiB: it does not fit; lower",
            "90.0 s by x",
            "cost    not known: no price",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
    }

    #[test]
    fn a_command_that_takes_too_long_is_ended() {
        let error = within(Command::new("sleep").arg("1000"), Duration::from_millis(50));
        assert!(error.unwrap_err().contains("took longer"));
    }
}
