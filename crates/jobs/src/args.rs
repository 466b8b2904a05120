//! What can be typed. `submit training` has the options of `gcloud ai-platform jobs submit training`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Parser, Subcommand};
use phalanx_launch::executor::Gpus;

/// Submit, watch, cancel and tune jobs on this machine, Slurm and Kubernetes.
#[derive(Debug, Parser)]
#[command(
    name = "phalanx jobs",
    version,
    disable_help_subcommand = true,
    arg_required_else_help = true
)]
pub(crate) struct Args {
    /// The folder of all jobs; PHALANX_JOBS_DIR, or one of the user's
    #[arg(long, global = true, value_name = "FOLDER")]
    pub(crate) root: Option<PathBuf>,
    /// The project that jobs belong to, as in AI Platform
    #[arg(long, global = true, default_value = "local", value_name = "NAME")]
    pub(crate) project: String,
    /// Who has signed the daemon's certificate, a file in PEM format, if it serves by TLS; PHALANX_JOBS_CA, or the certificate itself
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// How results are printed
    #[arg(
        long,
        global = true,
        default_value = "text",
        value_name = "text|json|yaml|value(FIELD,..)"
    )]
    pub(crate) format: Format,
    /// Nothing is asked here
    #[arg(long, short, global = true, hide = true)]
    pub(crate) quiet: bool,
    /// What to do
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// How results are printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Format {
    /// For people
    Text,
    /// One JSON value
    Json,
    /// YAML
    Yaml,
    /// These fields of each job, as `gcloud` prints them for scripts: a line a job, tabs between
    Value(Vec<String>),
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fields = text
            .strip_prefix("value(")
            .and_then(|rest| rest.strip_suffix(')'));
        let fields: Option<Vec<String>> = fields.map(|fields| {
            fields
                .split(',')
                .map(|field| field.trim().to_owned())
                .collect()
        });
        match (text, fields) {
            ("text", _) => Ok(Self::Text),
            ("json", _) => Ok(Self::Json),
            ("yaml", _) => Ok(Self::Yaml),
            (_, Some(fields)) if fields.iter().all(|field| !field.is_empty()) => {
                Ok(Self::Value(fields))
            }
            _ => {
                Err("expected text, json, yaml, or value(FIELD,..) such as value(state)".to_owned())
            }
        }
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Submit a job
    #[command(subcommand)]
    Submit(Submit),
    /// Search the hyperparameters of a job file, and show the trials
    Tune(Box<TuneArgs>),
    /// List jobs, the newest first
    List(ListArgs),
    /// Print all that is known of a job
    Describe {
        /// The job
        job: String,
        /// Print it for people instead of YAML
        #[arg(long)]
        summarize: bool,
    },
    /// Print what the tasks of a job write
    Logs(LogArgs),
    /// The same as `logs --follow`, under gcloud's name
    StreamLogs(LogArgs),
    /// End a job: its tasks have 30 s from SIGTERM on to save, and one cancel more ends them at once
    Cancel {
        /// The job
        job: String,
    },
    /// Change the labels of a job
    Update(UpdateArgs),
    /// Print the queue: jobs that wait, in the order in which they will start
    Queue,
    /// Wait for the end of a job; the exit code says how it ended
    Wait {
        /// The job
        job: String,
        /// Give up after this time, with exit code 75
        #[arg(long, value_name = "SECONDS")]
        timeout: Option<u64>,
    },
    /// Print the address of the dashboard, with which a browser may use it
    Dashboard,
    /// Answer the API and run jobs, until nothing has been asked for a while
    Serve(ServeArgs),
    /// Run a job until its end
    #[command(hide = true)]
    Supervise {
        /// The job
        job: String,
    },
    /// Copy between a job and its buckets until the input ends
    #[command(hide = true)]
    Transfer {
        /// The job
        job: String,
    },
    /// Bring a package from a bucket into a folder of a pod
    #[command(hide = true)]
    BringPackage {
        /// The package
        url: String,
        /// The folder
        folder: PathBuf,
    },
    /// End what a supervisor that was killed has left
    #[command(hide = true, name = "job-guard")]
    Guard {
        /// What its processes have in PHALANX_GENERATION
        attempt: String,
        /// What they have in PHALANX_JOB_ID
        run: String,
    },
}

/// What to submit.
#[derive(Debug, Subcommand)]
pub(crate) enum Submit {
    /// A training
    Training(Box<TrainingArgs>),
}

/// A training to submit.
#[derive(Debug, clap::Args)]
pub(crate) struct TrainingArgs {
    /// The job's name, which no job has had: a letter, then letters, digits, _ and -
    pub(crate) job: String,
    #[command(flatten)]
    pub(crate) spec: SpecArgs,
    /// Follow the logs until the end; Ctrl-C stops following, and the job goes on
    #[arg(long)]
    pub(crate) stream_logs: bool,
    /// Return at once, as is the default
    #[arg(long = "async", hide = true, conflicts_with = "stream_logs")]
    pub(crate) is_async: bool,
    #[command(flatten)]
    pub(crate) plan: PlanArgs,
}

/// Whether a job is only planned, and what is estimated of it.
#[derive(Debug, clap::Args)]
pub(crate) struct PlanArgs {
    /// Print the plan, where each value comes from, and what a training file would take; submit nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// What machines cost and compute: {currency: USD, machines: {n1-standard-4: {hour: 0.19, flops: 1e11}}, accelerators: {..}, here: {..}}
    #[arg(long, value_name = "FILE", requires = "dry_run")]
    pub(crate) prices: Option<PathBuf>,
    /// Estimate the time by some steps here, in place of FLOPs
    #[arg(long, requires = "dry_run")]
    pub(crate) measure: bool,
}

/// A search to start.
#[derive(Debug, clap::Args)]
pub(crate) struct TuneArgs {
    /// A training file; the values of trials are set in it
    #[arg(value_name = "TRAIN.YAML")]
    pub(crate) file: Option<PathBuf>,
    /// The job's name; one that is free if it is not given
    #[arg(long, value_name = "JOB")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) spec: SpecArgs,
    /// What is searched: fit.batch_size=8,16,32 or optimizer.adam.learning_rate=1e-4..1e-1:log; may be given again
    #[arg(long, value_name = "NAME=VALUES")]
    pub(crate) search: Vec<String>,
    /// The metric: a key of history.jsonl, or a tag of event files
    #[arg(long, value_name = "TAG")]
    pub(crate) metric: Option<String>,
    /// Small values of the metric are good
    #[arg(long)]
    pub(crate) minimize: bool,
    /// Trials in all
    #[arg(long, value_name = "N")]
    pub(crate) trials: Option<u32>,
    /// Trials at the same time
    #[arg(long, value_name = "N")]
    pub(crate) parallel: Option<u32>,
    #[command(flatten)]
    pub(crate) plan: PlanArgs,
}

/// What a job asks for: a file, and flags above it.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct SpecArgs {
    /// The job file: AI Platform's config.yaml, with our keys under `phalanx`
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Where it runs: local, slurm or kubernetes
    #[arg(long, value_name = "EXECUTOR")]
    pub(crate) to: Option<String>,
    /// The number of workers, which share what there is
    #[arg(long, value_name = "N")]
    pub(crate) workers: Option<String>,
    /// The region; kept, nothing else
    #[arg(long)]
    pub(crate) region: Option<String>,
    /// The folder of the results
    #[arg(long)]
    pub(crate) job_dir: Option<String>,
    /// BASIC, STANDARD_1, PREMIUM_1, BASIC_GPU, BASIC_TPU or CUSTOM
    #[arg(long)]
    pub(crate) scale_tier: Option<String>,
    /// The Python module that is run
    #[arg(long)]
    pub(crate) module_name: Option<String>,
    /// The folder of the Python module, or of the training file or the program; it is copied, and the job runs the copy
    #[arg(long)]
    pub(crate) package_path: Option<String>,
    /// A package that is not copied: a folder, or what --staging-bucket has kept before
    #[arg(long, value_delimiter = ',')]
    pub(crate) packages: Vec<String>,
    /// Where the package is copied to: a folder that all machines see, s3://.. or gs://..; a folder beside the jobs if it is not given
    #[arg(long)]
    pub(crate) staging_bucket: Option<String>,
    /// Kept, nothing else
    #[arg(long)]
    pub(crate) runtime_version: Option<String>,
    /// Kept, nothing else
    #[arg(long)]
    pub(crate) python_version: Option<String>,
    /// The machine type of the master
    #[arg(long)]
    pub(crate) master_machine_type: Option<String>,
    /// type=..,count=..
    #[arg(long)]
    pub(crate) master_accelerator: Option<String>,
    /// The image of the master
    #[arg(long)]
    pub(crate) master_image_uri: Option<String>,
    /// The machine type of the workers
    #[arg(long, requires = "worker_count")]
    pub(crate) worker_machine_type: Option<String>,
    /// The number of workers beside the master
    #[arg(long, requires = "worker_machine_type")]
    pub(crate) worker_count: Option<String>,
    /// type=..,count=..
    #[arg(long)]
    pub(crate) worker_accelerator: Option<String>,
    /// The image of the workers
    #[arg(long)]
    pub(crate) worker_image_uri: Option<String>,
    /// The machine type of the parameter servers
    #[arg(long, requires = "parameter_server_count")]
    pub(crate) parameter_server_machine_type: Option<String>,
    /// The number of parameter servers
    #[arg(long, requires = "parameter_server_machine_type")]
    pub(crate) parameter_server_count: Option<String>,
    /// type=..,count=..
    #[arg(long)]
    pub(crate) parameter_server_accelerator: Option<String>,
    /// The image of the parameter servers
    #[arg(long)]
    pub(crate) parameter_server_image_uri: Option<String>,
    /// Whether TF_CONFIG says chief, as is the default, or master
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    pub(crate) use_chief_in_tf_config: Option<String>,
    /// KEY=VALUE,..
    #[arg(long, value_delimiter = ',', value_name = "KEY=VALUE")]
    pub(crate) labels: Vec<String>,
    /// A key of a key service; refused
    #[arg(long)]
    pub(crate) kms_key: Option<String>,
    /// Where such a key is; refused
    #[arg(long, hide = true)]
    pub(crate) kms_keyring: Option<String>,
    /// Where such a key is; refused
    #[arg(long, hide = true)]
    pub(crate) kms_location: Option<String>,
    /// Where such a key is; refused
    #[arg(long, hide = true)]
    pub(crate) kms_project: Option<String>,
    /// A network; refused
    #[arg(long)]
    pub(crate) network: Option<String>,
    /// The service account of pods
    #[arg(long)]
    pub(crate) service_account: Option<String>,
    /// Kept, nothing else
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    pub(crate) enable_web_access: Option<String>,
    /// Arguments of the program; the program itself first, where no job file names one
    #[arg(value_name = "ARGS", last = true)]
    pub(crate) user_args: Vec<String>,
}

/// Which jobs to list.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Such as: jobId:rnn* AND state:FAILED
    #[arg(long)]
    pub(crate) filter: Option<String>,
    /// At most this number of jobs
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
    /// The number of jobs of each request
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) page_size: usize,
    /// Sort by these fields, such as state,~createTime; ~ before one reverses it
    #[arg(long, value_delimiter = ',', value_name = "FIELD")]
    pub(crate) sort_by: Vec<String>,
    /// Print names only, as the API has them
    #[arg(long)]
    pub(crate) uri: bool,
}

/// Which logs to print.
#[derive(Debug, clap::Args)]
pub(crate) struct LogArgs {
    /// The job
    pub(crate) job: String,
    /// Go on until the job has ended; Ctrl-C stops printing, and the job goes on
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Only this task, such as worker-0, or all of a kind, such as worker
    #[arg(long, value_name = "TASK")]
    pub(crate) task_name: Option<String>,
    /// Only the last lines of each task
    #[arg(long, value_name = "N")]
    pub(crate) tail: Option<usize>,
    /// The time between looks; lines come as they are written here
    #[arg(long, hide = true)]
    pub(crate) polling_interval: Option<u64>,
    /// Lines are printed as they are
    #[arg(long, hide = true)]
    pub(crate) allow_multiline_logs: bool,
}

/// Labels to change.
#[derive(Debug, clap::Args)]
pub(crate) struct UpdateArgs {
    /// The job
    pub(crate) job: String,
    /// KEY=VALUE,..
    #[arg(long, value_delimiter = ',', value_name = "KEY=VALUE")]
    pub(crate) update_labels: Vec<String>,
    /// KEY,..
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "KEY",
        conflicts_with = "clear_labels"
    )]
    pub(crate) remove_labels: Vec<String>,
    /// Remove all before others are set
    #[arg(long)]
    pub(crate) clear_labels: bool,
}

/// How to serve.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// Where to listen; another address than this machine's own loopback needs a certificate
    #[arg(long, default_value = "127.0.0.1:0", value_name = "HOST:PORT")]
    pub(crate) listen: String,
    /// Serve by TLS with this certificate: a file in PEM format, those between it and its authority after it
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_certificate: Option<PathBuf>,
    /// The certificate's key, a file in PEM format
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub(crate) tls_key: Option<PathBuf>,
    /// More names under which browsers may reach it; commands use the first if it serves by TLS
    #[arg(long, value_name = "HOST")]
    pub(crate) host: Vec<String>,
    /// End after this time without a request and without a job; 0 is never
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    pub(crate) idle: u64,
    /// The number of processors for jobs, if not all of this machine
    #[arg(long, value_name = "N")]
    pub(crate) cpus: Option<u32>,
    /// The GPUs for jobs, as CUDA_VISIBLE_DEVICES names them, such as 0,1; all that this variable or NVIDIA's driver has, if none are given; -1 for none
    #[arg(long, value_name = "LIST", allow_hyphen_values = true, value_parser = Gpus::listed)]
    pub(crate) gpus: Option<String>,
}
