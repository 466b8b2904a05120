//! What each task of a run does on its node: its variables, its program, and two files that tell of it.

use std::fmt::Write as _;

use phalanx_cluster::Address;
use serde_json::Value as Json;

use super::super::command::{Container, ContainerGpus, folders_of, of_container, phalanx, words};
use super::super::quoted::quoted;
use super::super::variables::{Naming, Variables};
use super::super::{Run, is_replaced};
use super::places::PLACES;
use crate::logs::Logs;
use crate::spec::{Program, SCRIPT_PREFIX, TaskPlan};

/// A task's place and its log, and what it runs: of an image, by the engine that its node has. Its variables are set by `env` as the program
/// starts, so that none has to do with the ones of this script and of the shell.
const START: &str = r#"place 0
phalanx_variables+=("MASTER_ADDR=${phalanx_own%:*}" "MASTER_PORT=${phalanx_own##*:}" PHALANX_CLUSTER=tf_config)
place "$SLURM_PROCID"
phalanx_counts=(PHALANX_RESTART_COUNT)
if [ "$SLURM_PROCID" -lt $phalanx_workers ]; then
  phalanx_counts+=(TORCHELASTIC_RESTART_COUNT)
  phalanx_here=0 phalanx_nodes=0 phalanx_last=
  for phalanx_at in "${phalanx_places[@]:0:phalanx_workers}"; do
    phalanx_at=${phalanx_at% *}
    [ "$phalanx_at" != "$phalanx_node" ] || phalanx_here=$((phalanx_here + 1))
    [ "$phalanx_at" = "$phalanx_last" ] || phalanx_nodes=$((phalanx_nodes + 1))
    phalanx_last=$phalanx_at
  done
  phalanx_variables+=("LOCAL_RANK=$SLURM_LOCALID" "LOCAL_WORLD_SIZE=$phalanx_here" "GROUP_RANK=$SLURM_NODEID" "GROUP_WORLD_SIZE=$phalanx_nodes")
fi
mkdir -p "${phalanx_log%/*}"; exec >>"$phalanx_log" 2>&1
echo "$SLURMD_NODENAME" >"$PHALANX_RUN/$phalanx_name.start"
if [ "$SLURMD_NODENAME" != "$phalanx_node" ]; then
  echo "task $SLURM_PROCID is on node $SLURMD_NODENAME, where the others look for it on $phalanx_node; let phalanx.slurm.nodes divide the number of tasks" >&2
  phalanx_code=3; tell exit; exit 3
fi
for phalanx_engine in $phalanx_engines; do command -v $phalanx_engine >/dev/null && declare -n phalanx_words=phalanx_$phalanx_engine && break; done
if [ ${#phalanx_words[@]} = 0 ]; then phalanx_words=(bash -c 'echo "the image needs one of $0, and none is on this node" >&2; exit 3' "$phalanx_engines"); fi
"#;

/// How a task of a fixed number runs its program: once.
const ONCE: &str = r#"phalanx_restarts=0 phalanx_told=
program & phalanx_child=$!
trap 'phalanx_told=1; kill -TERM $phalanx_child 2>/dev/null' TERM
wait $phalanx_child; phalanx_code=$?
while kill -0 $phalanx_child 2>/dev/null; do wait $phalanx_child; phalanx_code=$?; done
end_line
"#;

/// How a worker of an elastic job does: again after a loss, as often as `$phalanx_most` says, unless the chief, at whom the workers meet, has
/// ended. A worker that ends with 75 has lost another: if that was the chief, the file of its end comes meanwhile.
const AGAIN: &str = r#"phalanx_restarts=0 phalanx_told=
trap 'phalanx_told=1; kill -TERM $phalanx_child 2>/dev/null' TERM
while :; do
  program & phalanx_child=$!
  [ -z "$phalanx_told" ] || kill -TERM $phalanx_child 2>/dev/null
  wait $phalanx_child; phalanx_code=$?
  while kill -0 $phalanx_child 2>/dev/null; do wait $phalanx_child; phalanx_code=$?; done
  end_line
  case $phalanx_code in 75) [ $phalanx_most = 0 ] || sleep 2;; 129|130|137) ;; *) break;; esac
  [ -z "$phalanx_told" ] && [ ! -e "$phalanx_chief" ] && [ $phalanx_restarts -lt $phalanx_most ] || break
  phalanx_restarts=$((phalanx_restarts + 1))
  echo "$phalanx_name ended with exit code $phalanx_code, and is started again ($phalanx_restarts of $phalanx_most)" >&2
  tell "again-$phalanx_restarts"
done
"#;

/// Ends the last line of a task that did not: what another attempt writes is no part of it.
const END_LINE: &str = r#"end_line() { [ ! -s "$phalanx_log" ] || [ "$(tail -c 1 "$phalanx_log" | wc -l)" -gt 0 ] || echo; }
"#;
/// The end of a task, told.
const TELL: &str = r#"tell() { echo "$phalanx_code $(date +%s%3N)" >"$PHALANX_RUN/$phalanx_name.new" && mv "$PHALANX_RUN/$phalanx_name.new" "$PHALANX_RUN/$phalanx_name.$1"; }
"#;
/// A task that has ended well stays until the chief has ended, as Slurm ends the others a while after the first end; so does a worker that is
/// lost for good, but ten minutes at most: the chief's node may be lost with whatever would have told of its end.
const STAYS: &str = r#"trap phalanx_told=1 TERM
case $phalanx_code in 0) phalanx_stays=-1;; 75|129|130|137) phalanx_stays=$((phalanx_most > 0 ? 600 : 0));; *) phalanx_stays=0;; esac
while [ $phalanx_stays != 0 ] && [ -z "$phalanx_told" ] && [ ! -e "$phalanx_chief" ]; do sleep 1; phalanx_stays=$((phalanx_stays - 1)); done
"#;

/// The name in a script of the address of a task, which is known on the nodes only.
fn place(at: usize) -> Address {
    Address::new(format!("phalanx-task-{at}"), 1)
}

/// The script that `bash` runs as each task. The addresses are in the file that the batch script has written. What all tasks have alike
/// is in it once, and so are the addresses: it grows with the number of tasks, and not with its square.
pub(super) fn script(run: &Run<'_>, naming: &Naming<'_>) -> String {
    let tasks = &run.plan.tasks;
    let cluster = naming.cluster(place);
    let of = |plan: &TaskPlan| naming.of_task(plan.task, &cluster);
    let mut alike = tasks.first().map(of).unwrap_or_default();
    let addresses = addresses(&alike);
    for variables in tasks.iter().map(of) {
        // One by one: together they would be as large as the square of the number of tasks.
        alike.retain(|name, value| variables.get(name) == Some(value));
    }
    let mut text = meeting(&addresses, tasks.len());
    for name in ["TF_CONFIG", "CLUSTER_SPEC", "RANK", "WORLD_SIZE"] {
        let _ = writeln!(text, "unset {name}");
    }
    if let Some(chief) = tasks.first() {
        let _ = writeln!(text, "phalanx_chief=\"$PHALANX_RUN/{}.exit\"", chief.name());
    }
    // They are the first tasks, and fill nodes one after the other.
    let _ = writeln!(text, "phalanx_workers={}", run.plan.workers());
    // Slurm starts all tasks again by the same script.
    let before = run.restarts;
    let _ = writeln!(
        text,
        "phalanx_before=$(({before} + ${{SLURM_RESTART_COUNT:-0}}))"
    );
    text.push_str("phalanx_variables=(\n");
    for (name, value) in &alike {
        let variable = with_addresses(&format!("{name}={value}"), &addresses);
        let _ = writeln!(text, "{variable}");
    }
    text.push_str(")\ncase $SLURM_PROCID in\n");
    for (at, plan) in tasks.iter().enumerate() {
        text.push_str(&branch(run, naming, (&of(plan), &alike), &addresses, at));
    }
    text.push_str("esac\n");
    text.push_str(&program(run));
    text.push_str(END_LINE);
    text.push_str(TELL);
    text.push_str(START);
    let runs = match run.spec.ours.elastic {
        Some(_) => AGAIN,
        None => ONCE,
    };
    text.extend([runs, "tell exit\n", STAYS, "exit $phalanx_code\n"]);
    text
}

/// The function that becomes the program. The variables of secrets are never arguments, which others may see.
fn program(run: &Run<'_>) -> String {
    let mut text = "program() {\n".to_owned();
    for (name, file) in &run.spec.ours.secrets {
        // Apart, since `export` succeeds whatever its value was.
        let file = quoted(file);
        let _ = writeln!(text, "  {name}=\"$(cat {file})\" || exit 3; export {name}");
    }
    text.push_str(
        "  phalanx_count=$((phalanx_before + phalanx_restarts))\n  \
         exec env \"${phalanx_variables[@]}\" \"${phalanx_counts[@]/%/=$phalanx_count}\" \"${phalanx_words[@]}\"\n}\n",
    );
    text
}

/// The addresses of all tasks as TF_CONFIG has them, their places not yet known.
fn addresses(variables: &Variables) -> String {
    let config = variables.get("TF_CONFIG");
    let config: Option<Json> = config.and_then(|text| serde_json::from_str(text).ok());
    config.map_or_else(String::new, |config| config["cluster"].to_string())
}

/// The lines that read where tasks are, and put that into `$phalanx_cluster`.
fn meeting(addresses: &str, tasks: usize) -> String {
    format!(
        "mapfile -t phalanx_places <\"$PHALANX_RUN/{PLACES}\"\n\
         place() {{ phalanx_node=${{phalanx_places[$1]% *}} phalanx_own=${{phalanx_places[$1]#* }}; }}\n\
         phalanx_cluster={}\n\
         for ((phalanx_at = 0; phalanx_at < {tasks}; phalanx_at++)); do\n  \
         place $phalanx_at; phalanx_cluster=${{phalanx_cluster//phalanx-task-$phalanx_at:1/$phalanx_own}}\ndone\n",
        quoted(addresses)
    )
}

/// A value for a shell that has the addresses in `$phalanx_cluster`.
fn with_addresses(value: &str, addresses: &str) -> String {
    let parts: Vec<String> = value.split(addresses).map(quoted).collect();
    parts.join("\"$phalanx_cluster\"")
}

/// The variables and words of a task, as a branch of a `case`.
fn branch(
    run: &Run<'_>,
    naming: &Naming<'_>,
    (variables, alike): (&Variables, &Variables),
    addresses: &str,
    at: usize,
) -> String {
    let plan = &run.plan.tasks[at];
    let log = Logs::path(run.job.folder(), &run.task_name(&plan.name()));
    let mut text = format!(
        "{at})\n  phalanx_name={}\n  phalanx_log={}\n  phalanx_variables+=(",
        quoted(&plan.name()),
        quoted(&log.display().to_string())
    );
    let own = (variables.iter()).filter(|(name, _)| !alike.contains_key(*name));
    for (name, value) in own {
        let variable = with_addresses(&format!("{name}={value}"), addresses);
        let _ = write!(text, " {variable}");
    }
    text.push_str(" )\n");
    if run.spec.ours.elastic.is_some() {
        let most = match is_replaced(run.spec, run.plan, at) {
            true => run.spec.ours.restarts,
            false => 0,
        };
        let _ = writeln!(text, "  phalanx_most={most}");
    }
    let mut words = words(&run.plan.program, plan, &run.args, &phalanx());
    if words.first().is_some_and(|program| program.contains('=')) {
        // To `env` it would be a variable. This one starts what follows, and changes nothing.
        words.splice(..0, ["nice", "-n", "0"].map(str::to_owned));
    }
    text.push_str(&starts(run, naming, plan, &words, variables));
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
        format!("  {SCRIPT_PREFIX}{name}=({})\n", words.join(" "))
    };
    let (Program::Image, Some(image)) = (&run.plan.program, &plan.image) else {
        return array("words", words);
    };
    let (command, args) = words.split_at(plan.command.len());
    let mut names = of_container(run.spec, &naming.job.environment, variables);
    names.extend(["PHALANX_CLUSTER".to_owned()]);
    let secrets = run.spec.ours.secrets.keys();
    names.extend(
        secrets
            .filter(|name| !variables.contains_key(*name))
            .cloned(),
    );
    let container = Container {
        image,
        command,
        args,
        label: naming.run,
        folders: &folders_of(run, &naming.job.directory),
        directory: &naming.job.directory,
        variables: &names,
        gpus: ContainerGpus::Any(plan.resources.gpus),
    };
    // First the one that most clusters have.
    let engines = ["apptainer", "podman", "docker"];
    let arrays = engines.map(|engine| array(engine, &container.words(engine)));
    format!(
        "  phalanx_engines={}\n{}",
        quoted(&engines.join(" ")),
        arrays.concat()
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::process::{Command, Output};

    use serde_json::json;

    use super::super::script::{Scripts, TASK, scripts};
    use super::*;
    use crate::executor::{Job, RunArgs};
    use crate::lifecycle::{Life, Submitted};
    use crate::spec::{Plan, Source, Spec};
    use crate::testing::{Scratch, submitted};

    /// The scripts of a job whose tasks print a variable.
    fn of(root: &Path, tasks: usize, nodes: usize) -> Scripts {
        let words = "printenv TF_CONFIG CLUSTER_SPEC RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE MASTER_PORT";
        let words: Vec<&str> = words.split(' ').collect();
        of_words(root, tasks, nodes, &words)
    }

    /// The ones of a job whose tasks do this.
    fn of_words(root: &Path, tasks: usize, nodes: usize, words: &[&str]) -> Scripts {
        let phalanx = json!({"executor": "slurm", "workers": tasks, "slurm": {"nodes": nodes}, "env": {"TMPDIR": "/job"}});
        let scripts = of_keys(root, &json!({}), phalanx, words);
        assert!(scripts.batch.contains(&format!("--ntasks={tasks} ")));
        scripts
    }

    /// The ones of a job with these machines and keys of ours, in its third start.
    fn of_keys(root: &Path, machines: &Json, phalanx: Json, words: &[&str]) -> Scripts {
        let times = json!({"maxRunningTime": "60s"});
        let mut input = json!({"args": words, "jobDir": "runs/it's", "scheduling": times});
        let machines = machines.as_object().unwrap().clone();
        input.as_object_mut().unwrap().extend(machines);
        let source = json!({"trainingInput": input, "phalanx": phalanx});
        let spec = Spec::read(&Source::of_json(&source)).unwrap();
        let plan = Plan::new(&spec).unwrap();
        let job = Submitted {
            environment: [
                ("LANG", "it's $C"),
                ("CUDA_VISIBLE_DEVICES", "7"),
                ("TMPDIR", "/submitter"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
            ..submitted(root, input, phalanx)
        };
        let life = Life::new(1, job);
        let job = Job::planned(root, life.clone());
        let run = Run {
            job: &job,
            spec: &spec,
            plan: &plan,
            args: RunArgs::default(),
            attempt: 1,
            restarts: 2,
            stop: &|| None,
            started: &|| (),
        };
        scripts(&run, &life)
    }

    /// A task by its script, as Slurm starts it on a node.
    fn task(root: &Scratch, rank: usize, node: &str) -> Command {
        let mut command = Command::new("bash");
        command.arg(root.0.join(TASK)).env("PHALANX_RUN", &root.0);
        command.env("SLURM_PROCID", rank.to_string());
        command.envs([("SLURM_LOCALID", "3"), ("SLURM_NODEID", "4")]);
        command.envs([("SLURM_NNODES", "10"), ("SLURMD_NODENAME", node)]);
        command
    }

    /// Such a task at its end.
    fn started(root: &Scratch, rank: usize, node: &str) -> Output {
        task(root, rank, node).output().unwrap()
    }

    #[test]
    fn scripts_grow_with_the_number_of_tasks_and_not_with_its_square() {
        let root = Scratch::new("slurm-size");
        let [few, many] = [100, 500].map(|tasks| of(&root.0, tasks, tasks));
        assert!(many.task.len() < 6 * few.task.len(), "{}", many.task.len());
        // An argument or a variable has 131072 bytes at most.
        assert!(many.task.len() > 131_072 && many.batch.len() < 8192);
        assert!(many.batch.contains("slurm/1/task.sh\n"), "{}", many.batch);
    }

    #[test]
    fn a_job_has_its_whole_time_before_it_is_told_to_save() {
        let batch = of(&Scratch::new("slurm-time").0, 1, 1).batch;
        let asks = |option: &str| batch.contains(&format!("#SBATCH --{option}\n"));
        assert!(asks("time=2") && asks("signal=TERM@60"), "{batch}");
    }

    #[test]
    fn devices_and_folders_of_the_submitter_are_no_tasks() {
        let root = Scratch::new("slurm-environment");
        let Scripts { task, batch } = of(&root.0, 2, 1);
        assert!(
            task.contains("LANG=") && task.contains("TMPDIR=/job\n"),
            "{task}"
        );
        for own in ["CUDA_VISIBLE_DEVICES", "/submitter"] {
            assert!(!task.contains(own) && !batch.contains(own), "{own}: {task}");
        }
    }

    #[test]
    fn the_only_task_knows_its_own_address() {
        let root = Scratch::new("slurm-one");
        fs::write(root.0.join(PLACES), "n1 10.0.0.1:16000\n").unwrap();
        fs::write(root.0.join(TASK), of(&root.0, 1, 1).task).unwrap();
        let output = started(&root, 0, "n1");
        assert!(output.status.success(), "{output:?}");
        let text = fs::read_to_string(Logs::path(&root.0.join("jobs/demo"), "chief-0")).unwrap();
        for line in text.lines().take(2) {
            let told: Json = serde_json::from_str(line).unwrap_or_else(|_| panic!("{text}"));
            assert_eq!(told["cluster"], json!({"chief": ["10.0.0.1:16000"]}));
        }
        assert!(text.lines().count() > 2, "{text}");
    }

    #[test]
    fn each_of_many_tasks_knows_the_others_and_what_it_is() {
        let root = Scratch::new("slurm-task");
        let address = |at: usize| format!("10.0.0.{}:{}", at / 20 + 1, 16000 + at);
        let places: String = (0..200)
            .map(|at| format!("n{} {}\n", at / 20 + 1, address(at)))
            .collect();
        fs::write(root.0.join(PLACES), places).unwrap();
        fs::write(root.0.join(TASK), of(&root.0, 200, 10).task).unwrap();
        for (rank, name) in [(0, "chief-0"), (11, "worker-10"), (199, "worker-198")] {
            let output = started(&root, rank, &format!("n{}", rank / 20 + 1));
            assert!(output.status.success(), "{output:?}");
            let log = Logs::path(&root.0.join("jobs/demo"), name);
            let text = fs::read_to_string(log).unwrap();
            let lines: Vec<Json> = (text.lines())
                .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{text}")))
                .collect();
            let workers: Vec<String> = (1..200).map(address).collect();
            let cluster = json!({"chief": [address(0)], "worker": workers});
            let (kind, index) = name.split_once('-').unwrap();
            let index: usize = index.parse().unwrap();
            assert_eq!(lines[2..], [rank, 200, 3, 20, 4, 10, 16000].map(Json::from));
            for line in &lines[..2] {
                assert_eq!(line["cluster"], cluster, "{name}");
                assert_eq!(line["task"]["type"], kind);
                assert_eq!(line["task"]["index"], index);
            }
            let job: Json = serde_json::from_str(lines[1]["job"].as_str().unwrap()).unwrap();
            assert_eq!(job["jobDir"], "runs/it's");
            let ended = fs::read_to_string(root.0.join(format!("{name}.exit"))).unwrap();
            assert!(ended.starts_with("0 "), "{ended}");
        }
        // On another node than the one where the others look for it.
        assert_eq!(started(&root, 20, "n1").status.code(), Some(3));
        let log = fs::read_to_string(Logs::path(&root.0.join("jobs/demo"), "worker-19")).unwrap();
        assert!(
            log.contains("task 20 is on node n1, where the others look for it on n2"),
            "{log}"
        );
    }

    #[test]
    fn who_trains_beside_a_task_are_workers() {
        let root = Scratch::new("slurm-beside");
        let mut machines = json!({"scaleTier": "CUSTOM"});
        for (role, count) in [
            ("master", 1),
            ("worker", 2),
            ("parameterServer", 1),
            ("evaluator", 1),
        ] {
            machines[format!("{role}Type")] = json!("n1-standard-4");
            if role != "master" {
                machines[format!("{role}Count")] = json!(count);
            }
        }
        let script = "env | grep -E '^(LOCAL|GROUP)_|^TORCHELASTIC_RESTART' | sort";
        let keys = json!({"executor": "slurm"});
        let scripts = of_keys(&root.0, &machines, keys, &["sh", "-c", script]);
        fs::write(root.0.join(TASK), scripts.task).unwrap();
        let nodes = ["n1", "n1", "n2", "n2", "n3"];
        let places: String = nodes.iter().map(|node| format!("{node} a:1\n")).collect();
        fs::write(root.0.join(PLACES), places).unwrap();
        let names = ["chief-0", "worker-0", "worker-1", "ps-0", "evaluator-0"];
        let beside = [Some(2), Some(2), Some(1), None, None];
        for (rank, (name, beside)) in names.into_iter().zip(beside).enumerate() {
            assert!(started(&root, rank, nodes[rank]).status.success());
            let log = Logs::path(&root.0.join("jobs/demo"), name);
            let said = beside.map_or_else(String::new, |beside| {
                format!(
                    "GROUP_RANK=4\nGROUP_WORLD_SIZE=2\nLOCAL_RANK=3\nLOCAL_WORLD_SIZE={beside}\nTORCHELASTIC_RESTART_COUNT=2\n"
                )
            });
            assert_eq!(fs::read_to_string(log).unwrap(), said, "{name}");
        }
    }

    #[test]
    fn a_task_knows_how_often_it_was_started_by_whomever() {
        let root = Scratch::new("slurm-count");
        fs::write(root.0.join(PLACES), "n1 a:1\nn1 a:2\n").unwrap();
        // The worker of an elastic job is killed once, and the chief has ended with its second end.
        let script = "echo $PHALANX_RESTART_COUNT $TORCHELASTIC_RESTART_COUNT
if [ $RANK$MOST = 11 ] && mkdir $PHALANX_RUN/once; then kill -KILL $$; fi
echo >$PHALANX_RUN/chief-0.exit";
        let fixed = json!({"executor": "slurm", "workers": 2});
        let elastic = json!({"minWorkers": 1, "maxWorkers": 2});
        let elastic = json!({"executor": "slurm", "elastic": elastic, "env": {"MOST": "1"}});
        for (keys, rank, name, counts) in [
            (fixed, 0, "chief-0", &["3 3"][..]),
            (elastic.clone(), 0, "chief-0", &["3 3"]),
            (elastic, 1, "worker-0", &["3 3", "4 4"]),
        ] {
            let _ = fs::remove_file(root.0.join("chief-0.exit"));
            let log = Logs::path(&root.0.join("jobs/demo"), name);
            let _ = fs::remove_file(&log);
            let scripts = of_keys(&root.0, &json!({}), keys, &["sh", "-c", script]);
            fs::write(root.0.join(TASK), scripts.task).unwrap();
            let mut task = task(&root, rank, "n1");
            let output = task.env("SLURM_RESTART_COUNT", "1").output().unwrap();
            assert!(output.status.success(), "{output:?}");
            let text = fs::read_to_string(&log).unwrap();
            let own = text.lines().filter(|line| line.len() == 3);
            assert_eq!(own.collect::<Vec<_>>(), counts, "{text}");
        }
    }

    #[test]
    fn a_task_that_has_ended_well_stays_until_the_chief_has() {
        let root = Scratch::new("slurm-stays");
        fs::write(root.0.join(PLACES), "n1 a:1\nn1 a:2\n").unwrap();
        let scripts = of_words(&root.0, 2, 1, &["sh", "-c", "exit $((RANK * CODE))"]);
        fs::write(root.0.join(TASK), scripts.task).unwrap();
        // What happens meanwhile happens in the place of a sleep.
        let bin = root.0.join("bin");
        fs::create_dir(&bin).unwrap();
        fs::write(bin.join("sleep"), "#!/bin/sh\necho x >>slept; eval $DO\n").unwrap();
        fs::set_permissions(bin.join("sleep"), fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        let sleeps = |rank: usize, code: i32, meanwhile: &str| {
            for file in ["slept", "chief-0.exit"] {
                let _ = fs::remove_file(root.0.join(file));
            }
            let mut task = task(&root, rank, "n1");
            task.current_dir(&root.0).env("PATH", &path);
            task.env("CODE", code.to_string()).env("DO", meanwhile);
            assert_eq!(task.status().unwrap().code(), Some(code * rank as i32));
            fs::read_to_string(root.0.join("slept")).is_ok_and(|text| text == "x\n")
        };
        assert!(sleeps(1, 0, "echo >chief-0.exit"));
        // Slurm ends it.
        assert!(sleeps(1, 0, "kill -TERM $PPID"));
        assert!(!sleeps(1, 1, "exit") && !sleeps(0, 0, "exit"));
    }

    #[test]
    fn the_last_line_of_a_task_is_ended() {
        let root = Scratch::new("slurm-line");
        fs::write(root.0.join(PLACES), "n1 10.0.0.1:16000\n").unwrap();
        let log = Logs::path(&root.0.join("jobs/demo"), "chief-0");
        // The task of each attempt writes this; a program may end with any byte.
        for (said, logged) in [
            ("", ""),
            ("a\\n", "a\n"),
            ("b", "a\nb\n"),
            ("c\\0", "a\nb\nc\0\n"),
        ] {
            let scripts = of_words(&root.0, 1, 1, &["printf", said]);
            fs::write(root.0.join(TASK), scripts.task).unwrap();
            let output = started(&root, 0, "n1");
            assert!(output.status.success(), "{output:?}");
            assert_eq!(fs::read_to_string(&log).unwrap(), logged, "{said}");
        }
    }
}
