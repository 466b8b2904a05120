//! What each task of a run does on its node: its variables, its program, and two files that tell of it.

use std::fmt::Write as _;

use phalanx_cluster::Address;
use serde_json::Value as Json;

use super::super::command::{Container, of_container, phalanx, words};
use super::super::quoted::quoted;
use super::super::variables::{Naming, Variables};
use super::super::{Run, is_replaced};
use crate::logs::Logs;
use crate::spec::{Program, TaskPlan};

/// A task's place, its log, and what it runs: of an image, by the engine that its node has.
const START: &str = r#"place 0; export MASTER_ADDR=${own%:*} MASTER_PORT=${own##*:} LOCAL_RANK=$SLURM_LOCALID PHALANX_CLUSTER=tf_config
mkdir -p "${log%/*}"; exec >>"$log" 2>&1
echo "$SLURMD_NODENAME" >"$PHALANX_RUN/$name.start"
for engine in $engines; do command -v $engine >/dev/null && declare -n words=$engine && break; done
if [ ${#words[@]} = 0 ]; then words=(bash -c 'echo "the image needs one of $0, and none is on this node" >&2; exit 3' "$engines"); fi
"#;

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

/// The name in a script of the address of a task, which is known on the nodes only.
fn place(at: usize) -> Address {
    Address::new(format!("phalanx-task-{at}"), 1)
}

/// The script that `bash` runs as each task. Addresses have the names of nodes, and ports by the job's number. What all tasks have alike
/// is in it once, and so are the addresses: it grows with the number of tasks, and not with its square.
pub(super) fn script(run: &Run<'_>, naming: &Naming<'_>, each: usize) -> String {
    let tasks = &run.plan.tasks;
    let cluster = naming.cluster(place);
    let of = |plan: &TaskPlan| naming.of_task(plan.task, &cluster);
    let mut alike = tasks.first().map(of).unwrap_or_default();
    let addresses = addresses(&alike);
    for variables in tasks.iter().map(of) {
        // One by one: together they would be as large as the square of the number of tasks.
        alike.retain(|name, value| variables.get(name) == Some(value));
    }
    let mut text = meeting(&addresses, tasks.len(), each);
    for name in ["TF_CONFIG", "CLUSTER_SPEC", "RANK", "WORLD_SIZE"] {
        let _ = writeln!(text, "unset {name}");
    }
    if let Some(chief) = tasks.first() {
        let _ = writeln!(text, "chief=\"$PHALANX_RUN/{}.exit\"", chief.name());
    }
    // The nodes' own search paths are theirs.
    for (name, value) in &alike {
        let _ = writeln!(text, "export {name}={}", quoted(value));
    }
    text.push_str("case $SLURM_PROCID in\n");
    for (at, plan) in tasks.iter().enumerate() {
        text.push_str(&branch(run, naming, (&of(plan), &alike), &addresses, at));
    }
    text.push_str("esac\n");
    for (name, file) in &run.spec.ours.secrets {
        // Apart, since `export` succeeds whatever its value was.
        let file = quoted(file);
        let _ = writeln!(text, "{name}=\"$(cat {file})\" || exit 3; export {name}");
    }
    text.push_str(START);
    if run.spec.ours.elastic.is_some() {
        text.extend([AGAIN, TOLD, STAYS]);
    } else {
        text.extend([ONCE, TOLD]);
    }
    text.push_str("exit $code\n");
    text
}

/// The addresses of all tasks as TF_CONFIG has them, their places not yet known.
fn addresses(variables: &Variables) -> String {
    let config = variables.get("TF_CONFIG");
    let config: Option<Json> = config.and_then(|text| serde_json::from_str(text).ok());
    config.map_or_else(String::new, |config| config["cluster"].to_string())
}

/// The lines that find out where tasks are, and put that into `$cluster`.
fn meeting(addresses: &str, tasks: usize, each: usize) -> String {
    format!(
        "hosts=($(scontrol show hostnames \"$SLURM_STEP_NODELIST\"))\nbase=$((20000 + SLURM_JOB_ID * 64 % 10000))\n\
         place() {{ own=\"${{hosts[$(($1 / {each}))]}}:$((base + $1))\"; }}\n\
         cluster={}\n\
         for ((at = 0; at < {tasks}; at++)); do place $at; cluster=${{cluster//phalanx-task-$at:1/$own}}; done\n",
        quoted(addresses)
    )
}

/// A value for a shell that has the addresses in `$cluster`.
fn with_addresses(value: &str, addresses: &str) -> String {
    let parts: Vec<String> = value.split(addresses).map(quoted).collect();
    parts.join("\"$cluster\"")
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
        "{at})\n  name={}\n  log={}\n",
        quoted(&plan.name()),
        quoted(&log.display().to_string())
    );
    let own = (variables.iter()).filter(|(name, _)| !alike.contains_key(*name));
    for (name, value) in own {
        let value = with_addresses(value, addresses);
        let _ = writeln!(text, "  export {name}={value}");
    }
    if run.spec.ours.elastic.is_some() {
        let most = match is_replaced(run.spec, run.plan, at) {
            true => run.spec.ours.restarts,
            false => 0,
        };
        let _ = writeln!(text, "  most={most}");
    }
    let words = words(&run.plan.program, plan, &run.args, &phalanx());
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::process::Command;

    use serde_json::json;

    use super::super::script::{Scripts, scripts};
    use super::*;
    use crate::executor::{Job, RunArgs};
    use crate::lifecycle::{Life, Submitted};
    use crate::spec::{Plan, Source, Spec};
    use crate::testing::Scratch;

    /// The scripts of a job whose tasks print a variable.
    fn of(root: &Path, tasks: usize, nodes: usize) -> Scripts {
        let phalanx = json!({"executor": "slurm", "workers": tasks, "slurm": {"nodes": nodes}});
        let input =
            json!({"args": ["printenv", "TF_CONFIG", "CLUSTER_SPEC"], "jobDir": "runs/it's"});
        let source = json!({"trainingInput": input, "phalanx": phalanx});
        let spec = Spec::read(&Source::of_json(&source)).unwrap();
        let plan = Plan::new(&spec).unwrap();
        assert_eq!(plan.tasks.len(), tasks);
        let job = Submitted {
            name: "demo".parse().unwrap(),
            project: "p".into(),
            training_input: input,
            phalanx,
            labels: Default::default(),
            directory: root.to_owned(),
            environment: [("LANG".to_owned(), "it's $C".to_owned())].into(),
        };
        let life = Life::new(1, job);
        let job = Job::planned(root, life.clone());
        let run = Run {
            job: &job,
            spec: &spec,
            plan: &plan,
            args: RunArgs::default(),
            attempt: 1,
            stop: &|| None,
            started: &|| (),
        };
        scripts(&run, &life)
    }

    #[test]
    fn scripts_grow_with_the_number_of_tasks_and_not_with_its_square() {
        let root = Scratch::new("slurm-size");
        let [few, many] = [100, 500].map(|tasks| of(&root.0, tasks, tasks));
        assert!(many.task.len() < 6 * few.task.len(), "{}", many.task.len());
        // An argument or a variable has 131072 bytes at most.
        assert!(many.task.len() > 131_072 && many.batch.len() < 4096);
        assert!(many.batch.contains("slurm/1/task.sh\n"), "{}", many.batch);
    }

    #[test]
    fn each_of_many_tasks_knows_the_others_and_what_it_is() {
        let root = Scratch::new("slurm-task");
        let bin = root.0.join("bin");
        fs::create_dir(&bin).unwrap();
        let hosts = "#!/bin/sh\nfor n in 1 2 3 4 5 6 7 8 9 10; do echo n$n; done\n";
        fs::write(bin.join("scontrol"), hosts).unwrap();
        fs::set_permissions(bin.join("scontrol"), fs::Permissions::from_mode(0o755)).unwrap();
        let script = root.0.join("task.sh");
        fs::write(&script, of(&root.0, 200, 10).task).unwrap();
        for (rank, name) in [(0, "chief-0"), (11, "worker-10"), (199, "worker-198")] {
            let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
            let mut command = Command::new("bash");
            command.arg(&script).env("PATH", path);
            command.env("PHALANX_RUN", &root.0);
            for (name, value) in [
                ("STEP_NODELIST", "n[1-10]".to_owned()),
                ("JOB_ID", "7".to_owned()),
                ("PROCID", rank.to_string()),
                ("LOCALID", "0".to_owned()),
            ] {
                command.env(format!("SLURM_{name}"), value);
            }
            let output = command.env("SLURMD_NODENAME", "n1").output().unwrap();
            assert!(output.status.success(), "{output:?}");
            let log = Logs::path(&root.0.join("jobs/demo"), name);
            let text = fs::read_to_string(log).unwrap();
            let lines: Vec<Json> = (text.lines())
                .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{text}")))
                .collect();
            let address = |at: usize| format!("n{}:{}", at / 20 + 1, 20448 + at);
            let workers: Vec<String> = (1..200).map(address).collect();
            let cluster = json!({"chief": [address(0)], "worker": workers});
            let (kind, index) = name.split_once('-').unwrap();
            let index: usize = index.parse().unwrap();
            for line in &lines {
                assert_eq!(line["cluster"], cluster, "{name}");
                assert_eq!(line["task"]["type"], kind);
                assert_eq!(line["task"]["index"], index);
            }
            let job: Json = serde_json::from_str(lines[1]["job"].as_str().unwrap()).unwrap();
            assert_eq!(job["jobDir"], "runs/it's");
            let ended = fs::read_to_string(root.0.join(format!("{name}.exit"))).unwrap();
            assert!(ended.starts_with("0 "), "{ended}");
        }
    }
}
