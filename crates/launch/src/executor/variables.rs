//! The variables of tasks: TF_CONFIG, AI Platform's and torchrun's names, and ours.

use std::collections::BTreeMap;
use std::path::Path;

use phalanx_cluster::{Address, ClusterSpec, Task, TaskKind, tf_config};
use serde_json::{Value as Json, json};

use super::RunArgs;
use crate::lifecycle::Submitted;
use crate::spec::{Plan, Spec};

/// Variables by name.
pub(crate) type Variables = BTreeMap<String, String>;

/// What of a run the variables tell.
pub(crate) struct Naming<'a> {
    pub(crate) job: &'a Submitted,
    pub(crate) spec: &'a Spec,
    pub(crate) plan: &'a Plan,
    /// What tells the processes of this run from all others.
    pub(crate) run: &'a str,
    pub(crate) attempt: u32,
    /// How often the tasks were started before, for variables that say so.
    pub(crate) restarts: u32,
    pub(crate) args: &'a RunArgs,
    pub(crate) secret: &'a Path,
    /// Whether each task has a machine of its own; else all share one.
    pub(crate) apart: bool,
}

impl Naming<'_> {
    /// The cluster as TF_CONFIG tells it: evaluators are in no cluster.
    pub(crate) fn cluster(&self, address: impl Fn(usize) -> Address) -> ClusterSpec {
        let tasks = self.plan.tasks.iter().enumerate();
        let told = tasks.filter(|(_, plan)| plan.task.kind != TaskKind::Evaluator);
        told.fold(ClusterSpec::new(), |cluster, (at, plan)| {
            cluster.with(plan.task, address(at))
        })
    }

    /// The variables that all tasks have alike, whoever starts them.
    pub(crate) fn common(&self) -> Variables {
        let mut variables: Variables = self.job.environment.clone();
        variables.extend(self.spec.ours.env.clone());
        let path = variables.get("PYTHONPATH").cloned();
        let mut set = |name: &str, value: String| variables.insert(name.to_owned(), value);
        let project = self.job.project.clone();
        set("CLOUD_ML_JOB", self.job_text());
        set("CLOUD_ML_JOB_ID", self.job.name.to_string());
        set("CLOUD_ML_PROJECT_ID", project);
        set("PHALANX_JOB_ID", self.run.to_owned());
        set("PHALANX_JOB_NAME", self.job.name.to_string());
        set("PHALANX_GENERATION", self.attempt.to_string());
        set("PHALANX_RESTART_COUNT", self.restarts.to_string());
        set("PHALANX_SECRET_FILE", self.secret.display().to_string());
        set("PYTHONUNBUFFERED", "1".to_owned());
        if let Some(package) = &self.spec.package {
            let package = self.job.directory.join(package);
            set("PHALANX_PACKAGE", package.display().to_string());
            // As if the package were installed: its modules are found from the folder that it lies in.
            let folder = package.parent().unwrap_or(&package).display().to_string();
            let all = path.map_or(folder.clone(), |path| format!("{folder}:{path}"));
            set("PYTHONPATH", all);
        }
        if let Some(trial) = self.args.trial {
            set("CLOUD_ML_TRIAL_ID", trial.to_string());
            set("PHALANX_TRIAL", trial.to_string());
        }
        if let Some(folder) = &self.args.job_dir {
            set("PHALANX_JOB_DIR", folder.clone());
        }
        if let Some(folder) = self.args.folder() {
            set(
                "CLOUD_ML_HP_METRIC_FILE",
                format!("{folder}/hypertune/output.metrics"),
            );
        }
        variables
    }

    fn job_text(&self) -> String {
        let mut input = self.job.training_input.clone();
        if let (Json::Object(input), Some(folder)) = (&mut input, &self.args.job_dir) {
            input.insert("jobDir".to_owned(), Json::from(folder.as_str()));
        }
        input.to_string()
    }

    /// The variables of one task.
    pub(crate) fn of_task(&self, task: Task, cluster: &ClusterSpec) -> Variables {
        let mut variables = self.common();
        let mut config = self.tf_config(task, cluster);
        let trial = self.args.trial.map(|trial| trial.to_string());
        if let Some(trial) = &trial {
            config["task"]["trial"] = json!(trial);
        }
        let mut spec = config.clone();
        spec["task"]["trial"] = json!(trial.unwrap_or_default());
        spec["job"] = Json::from(self.job_text());
        let mut set = |name: &str, value: String| variables.insert(name.to_owned(), value);
        if let Some((least, _)) = self.spec.ours.elastic {
            set("PHALANX_MIN_WORKERS", least.to_string());
        }
        set("TF_CONFIG", config.to_string());
        set("CLUSTER_SPEC", spec.to_string());
        if let (Some(rank), Some(addresses)) =
            (cluster.worker_number(task), cluster.worker_addresses())
        {
            let (rank, size) = (rank.to_string(), addresses.len().to_string());
            let (group, local) = match self.apart {
                true => ([&*rank, &*size], ["0", "1"]),
                false => (["0", "1"], [&*rank, &*size]),
            };
            let named = [
                ("", [&*rank, &*size]),
                ("ROLE_", [&*rank, &*size]),
                ("GROUP_", group),
                ("LOCAL_", local),
            ];
            for (prefix, [rank, size]) in named {
                set(&format!("{prefix}RANK"), rank.to_owned());
                set(&format!("{prefix}WORLD_SIZE"), size.to_owned());
            }
            set("MASTER_ADDR", addresses[0].host.clone());
            set("MASTER_PORT", addresses[0].port.to_string());
            set("TORCHELASTIC_RUN_ID", self.run.to_owned());
            set("TORCHELASTIC_RESTART_COUNT", self.restarts.to_string());
            set(
                "TORCHELASTIC_MAX_RESTARTS",
                self.spec.ours.restarts.to_string(),
            );
        }
        variables
    }

    fn tf_config(&self, task: Task, cluster: &ClusterSpec) -> Json {
        let text = tf_config::write(cluster, task);
        let mut config: Json = serde_json::from_str(&text).unwrap_or_else(|_| json!({}));
        config["environment"] = Json::from("cloud");
        if self.spec.chief {
            return config;
        }
        if let Some(kinds) = config["cluster"].as_object_mut()
            && let Some(chief) = kinds.remove("chief")
        {
            kinds.insert("master".to_owned(), chief);
        }
        if task.kind == TaskKind::Chief {
            config["task"]["type"] = Json::from("master");
        }
        config
    }
}

/// The variables that a job gives its tasks: the ones that it names, and its secrets.
///
/// # Errors
/// The file of a secret cannot be read as text.
pub fn of_job(spec: &Spec, directory: &Path) -> Result<Variables, String> {
    let mut variables = spec.ours.env.clone();
    variables.extend(secrets(spec, directory)?);
    Ok(variables)
}

/// The variables of a job's secrets, from their files.
pub(crate) fn secrets(spec: &Spec, directory: &Path) -> Result<Variables, String> {
    let read = |(name, file): (&String, &String)| {
        let path = directory.join(file);
        let text = std::fs::read_to_string(&path);
        let text = text.map_err(|error| {
            format!(
                "the secret {name} cannot be read from {}: {error}; correct phalanx.secrets",
                path.display()
            )
        })?;
        Ok((name.clone(), text.trim_end_matches('\n').to_owned()))
    };
    spec.ours.secrets.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Source;
    use crate::testing::submitted;

    #[test]
    fn modules_are_found_in_the_package_and_then_where_the_job_says() {
        let of = |env: Json| {
            let input = json!({"pythonModule": "code.task", "packageUris": ["packages/code"]});
            let source = json!({"trainingInput": input, "phalanx": {"env": env}});
            let spec = Spec::read(&Source::of_json(&source)).unwrap();
            let plan = Plan::new(&spec).unwrap();
            let job = Submitted {
                environment: [("PYTHONPATH".to_owned(), "/submitter".to_owned())].into(),
                ..submitted(Path::new("/job"), input, json!({}))
            };
            let naming = Naming {
                job: &job,
                spec: &spec,
                plan: &plan,
                run: "run",
                attempt: 1,
                restarts: 0,
                args: &RunArgs::default(),
                secret: Path::new("secret"),
                apart: false,
            };
            naming.common()["PYTHONPATH"].clone()
        };
        assert_eq!(of(json!({})), "/job/packages:/submitter");
        assert_eq!(of(json!({"PYTHONPATH": "/own"})), "/job/packages:/own");
    }

    #[test]
    fn a_program_finds_the_number_of_its_trial_where_ai_platform_has_it() {
        let input = json!({"args": ["true"]});
        let spec = Spec::read(&Source::of_json(&json!({"trainingInput": input}))).unwrap();
        let plan = Plan::new(&spec).unwrap();
        let of = |trial| {
            let args = RunArgs {
                trial,
                ..RunArgs::default()
            };
            let naming = Naming {
                job: &submitted(Path::new("/job"), input.clone(), json!({})),
                spec: &spec,
                plan: &plan,
                run: "run",
                attempt: 1,
                restarts: 0,
                args: &args,
                secret: Path::new("secret"),
                apart: false,
            };
            let cluster = naming.cluster(|_| Address::new("127.0.0.1", 2222));
            let all = naming.of_task(plan.tasks[0].task, &cluster);
            let told = ["TF_CONFIG", "CLUSTER_SPEC"].map(|name| {
                let json: Json = serde_json::from_str(&all[name]).unwrap();
                json["task"]["trial"].clone()
            });
            // Programs of Phalanx read it, too.
            assert!(tf_config::parse(&all["TF_CONFIG"]).is_ok());
            told
        };
        assert_eq!(of(Some(7)), ["7", "7"]);
        assert_eq!(of(None), [Json::Null, json!("")]);
    }
}
