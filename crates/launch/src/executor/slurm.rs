//! Tasks as the tasks of a Slurm job: one batch script, `srun` in it, and files in the job's folder, which all nodes see, by which tasks
//! tell that they have started and how they ended.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use phalanx_cluster::{Address, TaskKind};

use super::command::{Container, of_container, phalanx, words};
use super::quoted::quoted;
use super::variables::{Naming, Variables};
use super::{Run, RunEnd};
use crate::lifecycle::{Event, FirstFailure, Life, TaskEnd};
use crate::logs::{Logs, last_lines};
use crate::spec::{Plan, Program, Spec, TaskPlan};

/// How often Slurm and the files are asked.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// How long the files of tasks may take to be seen here after Slurm says that the job is over.
const SETTLE_WITHIN: Duration = Duration::from_secs(10);
/// How long Slurm's commands may fail before the job counts as lost.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long the others may go on after the first task has ended.
const WAIT: u64 = 30;
/// The same where an evaluator looks at the last checkpoint.
const EVALUATION: u64 = 600;

/// What stands before Slurm's number of a job.
const HANDLE: &str = "slurm ";

/// The folder of an attempt within the job's folder.
fn folder_of(run: &Run<'_>) -> PathBuf {
    let trial = run
        .args
        .trial
        .map_or_else(String::new, |trial| format!("trial-{trial}-"));
    run.job
        .folder()
        .join("slurm")
        .join(format!("{trial}{}", run.attempt))
}

/// The name in a script of the address of a task, which is known on the nodes only.
fn place(at: usize) -> Address {
    Address::new(format!("phalanx-task-{at}"), 1)
}

/// The batch script of a run.
pub(super) fn script(run: &Run<'_>, life: &Life) -> String {
    let folder = &folder_of(run);
    let (spec, plan) = (run.spec, run.plan);
    let secret = run.job.folder().join("secret");
    let id = run.id(life);
    let naming = Naming {
        job: &life.job,
        spec,
        plan,
        run: &id,
        attempt: run.attempt,
        args: &run.args,
        secret: &secret,
    };
    let mut text = directives(spec, plan, life, folder);
    let tasks = plan.tasks.len();
    let nodes = spec.ours.slurm.nodes.unwrap_or(tasks).min(tasks);
    let each = tasks.div_ceil(nodes);
    let evaluates = plan
        .tasks
        .iter()
        .any(|task| task.task.kind == TaskKind::Evaluator);
    let wait = if evaluates { EVALUATION } else { WAIT };
    let _ = write!(
        text,
        "\n# What a task does: its variables, its program, and two files that tell of it.\n\
         export PHALANX_TASK={}\n\
         exec srun --nodes={nodes} --ntasks={tasks} --ntasks-per-node={each} --distribution=block --kill-on-bad-exit=0 --wait={wait} \
         --export=ALL /bin/bash -c \"$PHALANX_TASK\"\n",
        quoted(&task_script(run, &naming, each))
    );
    text
}

fn directives(spec: &Spec, plan: &Plan, life: &Life, folder: &Path) -> String {
    let tasks = plan.tasks.len();
    let keys = &spec.ours.slurm;
    let nodes = keys.nodes.unwrap_or(tasks).min(tasks);
    let minutes = spec.scheduling.max_running.as_secs().div_ceil(60);
    let mut lines = vec![
        format!("--job-name={}", life.job.name),
        format!("--nodes={nodes}"),
        format!("--ntasks={tasks}"),
        format!("--time={minutes}"),
        "--requeue".to_owned(),
        "--open-mode=append".to_owned(),
        // Before the time is over, so that a training saves.
        "--signal=TERM@60".to_owned(),
    ];
    let most = |of: fn(&TaskPlan) -> u32| plan.tasks.iter().map(of).max().unwrap_or(0);
    let (cpus, gpus) = (
        most(|task| task.resources.cpus),
        most(|task| task.resources.gpus),
    );
    if cpus > 0 {
        lines.push(format!("--cpus-per-task={cpus}"));
    }
    if gpus > 0 {
        lines.push(format!("--gpus-per-task={gpus}"));
    }
    if let Some(memory) = spec.ours.memory {
        lines.push(format!("--mem={}M", memory.div_ceil(1 << 20)));
    }
    for (name, value) in [
        ("partition", &keys.partition),
        ("account", &keys.account),
        ("qos", &keys.qos),
        ("constraint", &keys.constraint),
    ] {
        if let Some(value) = value {
            lines.push(format!("--{name}={value}"));
        }
    }
    let mut text = "#!/bin/bash\n".to_owned();
    for line in lines {
        let _ = writeln!(text, "#SBATCH {line}");
    }
    for name in ["PATH", "SLURM_CONF"] {
        if let Some(value) = life.job.environment.get(name) {
            let _ = writeln!(text, "export {name}={}", quoted(value));
        }
    }
    let directory = quoted(&life.job.directory.display().to_string());
    let _ = writeln!(text, "cd {directory} || exit 3");
    let _ = writeln!(
        text,
        "export PHALANX_RUN={}/r\"${{SLURM_RESTART_COUNT:-0}}\"",
        quoted(&folder.display().to_string())
    );
    text.push_str("mkdir -p \"$PHALANX_RUN\" || exit 3\n");
    text
}

/// What `bash -c` runs as each task. Addresses have the names of nodes, and ports by the job's number.
fn task_script(run: &Run<'_>, naming: &Naming<'_>, each: usize) -> String {
    let tasks = &run.plan.tasks;
    let cluster = naming.cluster(place);
    let mut text = format!(
        "hosts=($(scontrol show hostnames \"$SLURM_STEP_NODELIST\"))\nbase=$((20000 + SLURM_JOB_ID * 64 % 10000))\n\
         address() {{ echo \"${{hosts[$(($1 / {each}))]}}:$((base + $1))\"; }}\n"
    );
    for name in ["TF_CONFIG", "CLUSTER_SPEC", "RANK", "WORLD_SIZE"] {
        let _ = writeln!(text, "unset {name}");
    }
    text.push_str("case $SLURM_PROCID in\n");
    for (at, plan) in tasks.iter().enumerate() {
        let name = run.task_name(&plan.name());
        let log = Logs::path(run.job.folder(), &name);
        let _ = writeln!(
            text,
            "{at})\n  name={}\n  log={}",
            quoted(&plan.name()),
            quoted(&log.display().to_string())
        );
        let variables = naming.of_task(plan.task, &cluster);
        for (name, value) in &variables {
            // The nodes' own search paths are theirs.
            let _ = writeln!(text, "  export {name}={}", quoted(value));
        }
        let words = words(&run.plan.program, plan, &run.args, &phalanx());
        text.push_str(&starts(run, naming, plan, &words, &variables));
        text.push_str("  ;;\n");
    }
    text.push_str("esac\n");
    for (name, file) in &run.spec.ours.secrets {
        let _ = writeln!(text, "export {name}=\"$(cat {})\" || exit 3", quoted(file));
    }
    for at in 0..tasks.len() {
        let from = place(at);
        let _ = writeln!(
            text,
            "own=$(address {at}); TF_CONFIG=${{TF_CONFIG//{from}/$own}}; CLUSTER_SPEC=${{CLUSTER_SPEC//{from}/$own}}"
        );
    }
    text.push_str(
        "own=$(address 0); export MASTER_ADDR=${own%:*} MASTER_PORT=${own##*:} LOCAL_RANK=$SLURM_LOCALID PHALANX_CLUSTER=tf_config\n\
         mkdir -p \"${log%/*}\"; exec >>\"$log\" 2>&1\n\
         echo \"$SLURMD_NODENAME\" >\"$PHALANX_RUN/$name.start\"\n\
         for engine in $engines; do command -v $engine >/dev/null && declare -n words=$engine && break; done\n\
         if [ ${#words[@]} = 0 ]; then words=(bash -c 'echo \"the image needs one of $0, and none is on this node\" >&2; exit 3' \"$engines\"); fi\n\
         \"${words[@]}\" & child=$!\n\
         trap 'kill -TERM $child 2>/dev/null' TERM\n\
         wait $child; code=$?\n\
         while kill -0 $child 2>/dev/null; do wait $child; code=$?; done\n\
         echo \"$code $(date +%s%3N)\" >\"$PHALANX_RUN/$name.new\" && mv \"$PHALANX_RUN/$name.new\" \"$PHALANX_RUN/$name.exit\"\n\
         exit $code\n",
    );
    text
}

/// The lines that say what a task runs: `words`, or for an image an array named as each engine, of which the node chooses.
fn starts(
    run: &Run<'_>,
    naming: &Naming<'_>,
    plan: &TaskPlan,
    words: &[String],
    variables: &Variables,
) -> String {
    let array = |name: &str, words: &[String]| {
        let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        format!("  {name}=({})\n", words.join(" "))
    };
    let (Program::Image, Some(image)) = (&run.plan.program, &plan.image) else {
        return array("words", words);
    };
    let (command, args) = words.split_at(plan.command.len());
    let mut names = of_container(run.spec, &naming.job.environment, variables);
    names.extend(["PHALANX_CLUSTER".to_owned()]);
    names.extend(run.spec.ours.secrets.keys().cloned());
    let container = Container {
        image,
        command,
        args,
        label: naming.run,
        folders: [run.job.folder(), &naming.job.directory],
        variables: &names,
        gpus: plan.resources.gpus,
    };
    // First the one that most clusters have.
    let engines = ["apptainer", "podman", "docker"];
    let arrays = engines.map(|engine| array(engine, &container.words(engine)));
    format!(
        "  engines={}\n{}",
        quoted(&engines.join(" ")),
        arrays.concat()
    )
}

pub(super) fn run(run: &Run<'_>) -> RunEnd {
    let life = match run.job.life() {
        Ok(life) => life,
        Err(error) => return RunEnd::Refused(error.to_string()),
    };
    if let Some((id, folder)) = left(run, &life) {
        return Watching::of(run, id, folder).watch();
    }
    let folder = folder_of(run);
    let id = match submit(run, &life, &folder) {
        Ok(id) => id,
        Err(why) => return RunEnd::Refused(why),
    };
    run.note(Event::Handle {
        handle: Some(format!("{HANDLE}{id}")),
    });
    Watching::of(run, id, folder).watch()
}

/// Slurm's job and the folder of the attempt before, whose supervisor was killed: that job goes on.
fn left(run: &Run<'_>, life: &Life) -> Option<(String, PathBuf)> {
    let id = life.handle.as_ref()?.strip_prefix(HANDLE)?;
    let attempts = run.job.folder().join("slurm");
    let before = (1..run.attempt)
        .rev()
        .map(|attempt| attempts.join(attempt.to_string()));
    let folder = before
        .filter(|_| run.args.trial.is_none())
        .find(|folder| folder.is_dir())?;
    Some((id.to_owned(), folder))
}

/// Ends what Slurm has of a job that nobody watches any more.
pub(crate) fn cancel(life: &Life) {
    if let Some(id) = life
        .handle
        .as_ref()
        .and_then(|handle| handle.strip_prefix(HANDLE))
    {
        let _ = ask(tool("scancel", life).arg(id));
    }
}

fn submit(run: &Run<'_>, life: &Life, folder: &Path) -> Result<String, String> {
    let wrong = |error: std::io::Error| format!("cannot write {}: {error}", folder.display());
    fs::create_dir_all(folder).map_err(wrong)?;
    super::secret(run.job.folder()).map_err(wrong)?;
    let path = folder.join("job.sbatch");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o700)
        .open(&path)
        .map_err(wrong)?;
    file.write_all(script(run, life).as_bytes())
        .map_err(wrong)?;
    let output = format!("--output={}", folder.join("batch.log").display());
    let mut command = tool("sbatch", life);
    command
        .args(["--parsable", "--export=NONE", &output])
        .arg(&path);
    let answer = ask(&mut command)?;
    let id = answer.trim().split(';').next().unwrap_or_default();
    if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("sbatch answers {answer:?}, and no number of a job"));
    }
    Ok(id.to_owned())
}

/// A command of Slurm's with the submitter's variables, which say where its configuration is.
fn tool(name: &str, life: &Life) -> Command {
    let mut command = Command::new(name);
    let environment = life.job.environment.iter();
    command.envs(environment.filter(|(name, _)| name.starts_with("SLURM_CONF") || *name == "PATH"));
    command
}

fn ask(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| {
        format!(
            "cannot start {name}: {error}; submit where Slurm's commands are, or with --to local"
        )
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let error = String::from_utf8_lossy(&output.stderr);
    Err(format!("{name} refuses: {}", error.trim()))
}

struct Watching<'a> {
    run: &'a Run<'a>,
    id: String,
    folder: PathBuf,
    /// How often Slurm has started the job again, as far as its files tell.
    newest: u32,
    started: Vec<usize>,
    ended: Vec<(usize, u64, TaskEnd)>,
    answered: Instant,
    told: Option<Instant>,
    running: bool,
}

impl<'a> Watching<'a> {
    fn of(run: &'a Run<'a>, id: String, folder: PathBuf) -> Self {
        Self {
            run,
            id,
            folder,
            newest: 0,
            started: Vec::new(),
            ended: Vec::new(),
            answered: Instant::now(),
            told: None,
            running: false,
        }
    }

    fn watch(mut self) -> RunEnd {
        loop {
            self.look_at_files();
            if self.told.is_none() && (self.run.stop)().is_some() {
                self.told = Some(Instant::now());
                let _ = self.command("scancel", &[]);
            }
            match self.state() {
                Ok(state) if is_over(&state) => {
                    self.settle(&state);
                    return self.judge(&state);
                }
                Ok(_) => self.answered = Instant::now(),
                Err(why) if self.answered.elapsed() > PATIENCE => return RunEnd::Lost(why),
                Err(_) => {}
            }
            if self.told.is_some_and(|told| told.elapsed() > PATIENCE) {
                return RunEnd::Lost(format!("Slurm does not end job {}", self.id));
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    fn command(&self, name: &str, args: &[&str]) -> Result<String, String> {
        let life = self.run.job.life().map_err(|error| error.to_string())?;
        ask(tool(name, &life).args(args).arg(&self.id))
    }

    /// Slurm's word for how the job is, such as RUNNING or NODE_FAIL.
    fn state(&self) -> Result<String, String> {
        let shown = self.command("scontrol", &["--oneliner", "show", "job"])?;
        let state = shown
            .split_whitespace()
            .find_map(|part| part.strip_prefix("JobState="));
        state
            .map(str::to_owned)
            .ok_or_else(|| format!("scontrol does not say how job {} is", self.id))
    }

    /// Files of the last tasks may come a little after Slurm says that they have ended; all tasks of a job that is completed have some, also
    /// those that began and ended since the last look.
    fn settle(&mut self, state: &str) {
        let until = Instant::now() + SETTLE_WITHIN;
        loop {
            self.look_at_files();
            let expected = match state {
                "COMPLETED" => self.run.plan.tasks.len(),
                _ => self.started.len(),
            };
            if self.ended.len() >= expected || Instant::now() >= until {
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn look_at_files(&mut self) {
        while self.folder.join(format!("r{}", self.newest + 1)).is_dir() {
            // Slurm has started all tasks once more, after the loss of a node or a preemption.
            self.newest += 1;
            (self.started, self.ended) = (Vec::new(), Vec::new());
        }
        let folder = self.folder.join(format!("r{}", self.newest));
        for (at, plan) in self.run.plan.tasks.iter().enumerate() {
            let (name, task) = (plan.name(), self.run.task_name(&plan.name()));
            if !self.started.contains(&at)
                && let Ok(node) = fs::read_to_string(folder.join(format!("{name}.start")))
            {
                self.started.push(at);
                let place = format!("node {}", node.trim());
                self.run.note(Event::TaskStarted {
                    task: task.clone(),
                    attempt: self.run.attempt,
                    place,
                });
            }
            let known = self.ended.iter().any(|(known, ..)| *known == at);
            if !known && let Some((end, when)) = ended(&folder.join(format!("{name}.exit"))) {
                let told = self.told.is_some();
                let end = TaskEnd { told, ..end };
                self.ended.push((at, when, end));
                self.run.note(Event::TaskEnded { task, end });
            }
        }
        if !self.running && self.started.len() == self.run.plan.tasks.len() {
            self.running = true;
            (self.run.started)();
        }
    }

    fn judge(mut self, state: &str) -> RunEnd {
        self.run.note(Event::Handle { handle: None });
        self.ended.sort_by_key(|(_, when, _)| *when);
        let mut failed = self.ended.iter().filter(|(.., end)| end.failed());
        let first = failed
            .clone()
            .find(|(.., end)| end.code != Some(75))
            .or_else(|| failed.next());
        let lost = ["NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "REVOKED"].contains(&state);
        if self.told.is_some() {
            return RunEnd::Stopped;
        }
        if let (Some((at, _, end)), false) = (first, lost) {
            let plan = &self.run.plan.tasks[*at];
            let task = self.run.task_name(&plan.name());
            let folder = self.run.job.folder();
            return RunEnd::Failed(Box::new(FirstFailure {
                rank: self.run.plan.rank(plan.task),
                attempt: self.run.attempt,
                end: *end,
                last_lines: last_lines(folder, &task, 20),
                log: Logs::path(folder, &task),
                task,
            }));
        }
        let chief = self
            .ended
            .iter()
            .any(|(at, _, end)| *at == 0 && end.code == Some(0));
        let batch = self.folder.join("batch.log");
        match state {
            _ if chief => RunEnd::Succeeded,
            _ if lost => RunEnd::Lost(format!("Slurm's job {} ended as {state}", self.id)),
            "TIMEOUT" | "DEADLINE" => {
                RunEnd::Refused(format!("Slurm's job {} had no more time", self.id))
            }
            "CANCELLED" => {
                RunEnd::Refused(format!("Slurm's job {} was cancelled in Slurm", self.id))
            }
            state => RunEnd::Refused(format!(
                "Slurm's job {} ended as {state} without a word of its tasks; look at {}",
                self.id,
                batch.display()
            )),
        }
    }
}

fn is_over(state: &str) -> bool {
    ![
        "PENDING",
        "RUNNING",
        "CONFIGURING",
        "COMPLETING",
        "REQUEUED",
        "REQUEUE_HOLD",
        "REQUEUE_FED",
        "RESIZING",
        "SUSPENDED",
        "SIGNALING",
        "STAGE_OUT",
        "STOPPED",
    ]
    .contains(&state)
}

/// How a task ended, and when, by the file that it leaves.
fn ended(path: &Path) -> Option<(TaskEnd, u64)> {
    let text = fs::read_to_string(path).ok()?;
    let (code, when) = text.trim().split_once(' ')?;
    let code: u8 = code.parse().ok()?;
    // A shell says 128 and the signal's number of a process that a signal ended.
    let signal = i32::from(code.saturating_sub(128));
    let end = match code {
        143 | 0..=128 => TaskEnd::code(code),
        _ => TaskEnd {
            code: None,
            signal: Some(signal),
            told: false,
        },
    };
    Some((end, when.parse().ok()?))
}
