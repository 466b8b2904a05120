//! The batch script of a run, and in it what each of its tasks does.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use phalanx_cluster::{Address, ClusterSpec, TaskKind};

use super::super::command::{Container, of_container, phalanx, words};
use super::super::quoted::quoted;
use super::super::variables::{Naming, Variables};
use super::super::{Run, is_replaced};
use crate::lifecycle::Life;
use crate::logs::Logs;
use crate::spec::{Plan, Program, Spec, TaskPlan};

/// How long the others may go on after the first task has ended.
const WAIT: u64 = 30;
/// The same where an evaluator looks at the last checkpoint.
const EVALUATION: u64 = 600;

/// How a task of a fixed number runs its program: once.
const ONCE: &str = r#""${words[@]}" & child=$!
trap 'kill -TERM $child 2>/dev/null' TERM
wait $child; code=$?
while kill -0 $child 2>/dev/null; do wait $child; code=$?; done
"#;

/// How a worker of an elastic job does: again after a loss, as often as `$most` says, unless the chief, at whom the workers meet, has ended.
/// A worker that ends with 75 has lost another: if that was the chief, the file of its end comes meanwhile.
const AGAIN: &str = r#"restarts=0 told=
trap 'told=1; kill -TERM $child 2>/dev/null' TERM
while :; do
  export PHALANX_RESTART_COUNT=$restarts TORCHELASTIC_RESTART_COUNT=$restarts
  "${words[@]}" & child=$!
  [ -z "$told" ] || kill -TERM $child 2>/dev/null
  wait $child; code=$?
  while kill -0 $child 2>/dev/null; do wait $child; code=$?; done
  case $code in 75) [ $most = 0 ] || sleep 2;; 129|130|137) ;; *) break;; esac
  [ -z "$told" ] && [ ! -e "$chief" ] && [ $restarts -lt $most ] || break
  restarts=$((restarts + 1))
  echo "$name ended with exit code $code, and is started again ($restarts of $most)" >&2
  echo "$code $(date +%s%3N)" >"$PHALANX_RUN/$name.new" && mv "$PHALANX_RUN/$name.new" "$PHALANX_RUN/$name.again-$restarts"
done
"#;

/// The end of a task, told; a worker that is lost for good stays until the chief has ended, so that Slurm does not end the others for its sake,
/// but ten minutes at most: the chief's node may be lost with whatever would have told of its end.
const TOLD: &str = r#"echo "$code $(date +%s%3N)" >"$PHALANX_RUN/$name.new" && mv "$PHALANX_RUN/$name.new" "$PHALANX_RUN/$name.exit"
"#;
const STAYS: &str = r#"case $code in 75|129|130|137) [ $most = 0 ] || for ((waited = 0; waited < 600; waited++)); do [ -z "$told" ] && [ ! -e "$chief" ] || break; sleep 1; done;; esac
"#;

/// The folder of an attempt within the job's folder.
pub(super) fn folder_of(run: &Run<'_>) -> PathBuf {
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
pub(in super::super) fn script(run: &Run<'_>, life: &Life) -> String {
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
    let keep = if spec.ours.elastic.is_some() {
        " --no-kill"
    } else {
        ""
    };
    let _ = write!(
        text,
        "\n# What a task does: its variables, its program, and two files that tell of it.\n\
         export PHALANX_TASK={}\n\
         exec srun --nodes={nodes} --ntasks={tasks} --ntasks-per-node={each} --distribution=block --kill-on-bad-exit=0 --wait={wait}{keep} \
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
    if spec.ours.elastic.is_some() {
        // The others go on when a node is lost.
        lines.push("--no-kill".to_owned());
    }
    lines.extend(resources(spec, plan));
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

/// What each task needs, and where it may run.
fn resources(spec: &Spec, plan: &Plan) -> Vec<String> {
    let keys = &spec.ours.slurm;
    let mut lines = Vec::new();
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
    lines
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
    if let Some(chief) = tasks.first() {
        let _ = writeln!(text, "chief=\"$PHALANX_RUN/{}.exit\"", chief.name());
    }
    text.push_str("case $SLURM_PROCID in\n");
    for at in 0..tasks.len() {
        text.push_str(&branch(run, naming, &cluster, at));
    }
    text.push_str("esac\n");
    for (name, file) in &run.spec.ours.secrets {
        // Apart, since `export` succeeds whatever its value was.
        let file = quoted(file);
        let _ = writeln!(text, "{name}=\"$(cat {file})\" || exit 3; export {name}");
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
         if [ ${#words[@]} = 0 ]; then words=(bash -c 'echo \"the image needs one of $0, and none is on this node\" >&2; exit 3' \"$engines\"); fi\n",
    );
    if run.spec.ours.elastic.is_some() {
        text.extend([AGAIN, TOLD, STAYS]);
    } else {
        text.extend([ONCE, TOLD]);
    }
    text.push_str("exit $code\n");
    text
}

/// The variables and words of a task, as a branch of a `case`.
fn branch(run: &Run<'_>, naming: &Naming<'_>, cluster: &ClusterSpec, at: usize) -> String {
    let plan = &run.plan.tasks[at];
    let log = Logs::path(run.job.folder(), &run.task_name(&plan.name()));
    let mut text = format!(
        "{at})\n  name={}\n  log={}\n",
        quoted(&plan.name()),
        quoted(&log.display().to_string())
    );
    let variables = naming.of_task(plan.task, cluster);
    for (name, value) in &variables {
        // The nodes' own search paths are theirs.
        let _ = writeln!(text, "  export {name}={}", quoted(value));
    }
    if run.spec.ours.elastic.is_some() {
        let most = match is_replaced(run.spec, run.plan, at) {
            true => run.spec.ours.restarts,
            false => 0,
        };
        let _ = writeln!(text, "  most={most}");
    }
    let words = words(&run.plan.program, plan, &run.args, &phalanx());
    text.push_str(&starts(run, naming, plan, &words, &variables));
    text.push_str("  ;;\n");
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
