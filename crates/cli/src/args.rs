//! What can be typed: one definition gives the parser, the help and the completions.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use phalanx::replicas::DeviceChoice;
use phalanx_pjrt::{CPU_PLUGIN, Platform, UnknownPlatform};
use phalanx_yaml::Bytes;

use crate::predictions::Format;
pub use crate::trained_args::{ExportArgs, UseArgs};

/// Train neural networks on one device or many.
#[derive(Debug, Parser)]
#[command(name = "phalanx", version = version(), disable_help_subcommand = true, arg_required_else_help = true)]
pub struct Args {
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Options of every command")]
pub struct Global {
    /// Never use the network: a missing plugin is an error instead of a download
    #[arg(long, global = true)]
    pub offline: bool,
    /// Use this PJRT plugin, and look nowhere else
    #[arg(long, global = true, value_name = "PATH")]
    pub plugin: Option<PathBuf>,
    /// How progress is shown; auto is a bar on a terminal and plain lines elsewhere
    #[arg(long, global = true, value_enum, default_value_t = Progress::Auto, value_name = "HOW")]
    pub progress: Progress,
    /// The devices of train, trace, estimate, evaluate and predict, and for whose kind export writes StableHLO: cpu:4 divides the CPU into 4 parts
    /// (a number, and cpu:0 or cpu alone is all of it undivided), gpu is all GPUs, gpu:0 the first, gpu:0,gpu:1 these two
    #[arg(long, global = true, value_name = "DEVICES")]
    pub devices: Option<DeviceChoice>,
    /// Print results and errors, nothing else
    #[arg(long, short, global = true)]
    pub quiet: bool,
}

/// How progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Progress {
    /// A bar on a terminal, plain lines elsewhere
    Auto,
    /// One line, drawn again and again
    Bar,
    /// Plain lines
    Plain,
    /// One JSON object a line
    Json,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train the model of a train.yaml, test it, and save it
    Train(TrainArgs),
    /// Start the workers of a training on this machine, and end them all when one fails
    Launch(LaunchArgs),
    /// End what a launch started once it is gone
    #[command(hide = true)]
    LaunchGuard {
        /// The job
        job: String,
    },
    /// Submit, list, watch and cancel jobs on this machine, Slurm and Kubernetes: the program phalanx-jobs
    Jobs,
    /// Search hyperparameters: the program phalanx-jobs
    Tune,
    /// Print which worker of how many this process is, from TF_CONFIG, torchrun's variables, Slurm, Kubernetes or MPI
    Env {
        /// Print every variable that was read, what it means, and what was passed over
        #[arg(long)]
        explain: bool,
    },
    /// Print loss and metrics of a trained model
    Evaluate(EvaluateArgs),
    /// Print what a training step takes: parameters, memory, work, and the largest batch that fits
    Estimate(EstimateArgs),
    /// Print a trained model's prediction for each row
    Predict(PredictArgs),
    /// Write a trained model to a file that Keras reads, its prediction as ONNX or StableHLO for serving, or its weights alone
    Export(ExportArgs),
    /// Draw the curves of trainings, in the terminal or as a picture, SVG or PNG
    Plot(PlotArgs),
    /// Print in which settings trainings differ, and what they came to
    Compare(CompareArgs),
    /// Train for some steps, write nothing but a trace of where their time goes, for Perfetto or chrome://tracing
    Trace(TraceArgs),
    /// Look at data, write them as TFRecord shards, or time reading them
    #[command(subcommand)]
    Data(DataCommand),
    /// List, check, remove, export or compare checkpoints
    #[command(subcommand)]
    Ckpt(CheckpointCommand),
    /// List, install or find the plugins that drive devices
    #[command(subcommand)]
    Plugin(Plugin),
    /// List the devices of a plugin
    Devices {
        /// Whose plugin: cpu, cuda, rocm, tpu or oneapi
        #[arg(long, default_value = "cpu")]
        platform: Platform,
    },
    /// Check that this machine is ready to train, or that several are ready to train together; ends with 3 if not
    Doctor(DoctorArgs),
    /// Print the JSON Schema of a train.yaml, by which editors complete and check it
    Schema,
    /// Print the completions of a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// What to check.
#[derive(Debug, clap::Args)]
pub struct DoctorArgs {
    /// Check the machines of a cluster: start this on each of them as the training is started
    #[arg(long)]
    pub cluster: bool,
    /// How long to wait for the other machines
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 120,
        requires = "cluster"
    )]
    pub within: u32,
    /// A file that must be the same on all machines, such as the training file or the program; may be given again
    #[arg(long, value_name = "FILE", requires = "cluster")]
    pub same: Vec<PathBuf>,
    /// A folder that all machines must share, such as the data's; may be given again
    #[arg(long, value_name = "FOLDER", requires = "cluster")]
    pub shared: Vec<PathBuf>,
    /// The file with the secret of the job, where it has one
    #[arg(long, value_name = "FILE", requires = "cluster")]
    pub secret_file: Option<PathBuf>,
}

/// What to train.
#[derive(Debug, clap::Args)]
pub struct TrainArgs {
    /// What to train, on what, and how
    #[arg(value_name = "TRAIN.YAML")]
    pub file: PathBuf,
    /// Train for this number of epochs, whatever the file says
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub epochs: Option<NonZeroUsize>,
    /// End an epoch after this number of batches
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub steps_per_epoch: Option<NonZeroUsize>,
    /// Set a key of the file to another value, as in fit.batch_size=64 or model.0.dense.units=32; may be given again
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// The folder of the model and the logs, whatever the file says
    #[arg(long, value_name = "FOLDER")]
    pub output: Option<PathBuf>,
    /// Where several workers meet: host:port of the first one, etcd://host:2379, or etcds://host:2379 by TLS
    #[arg(long, value_name = "ADDRESS")]
    pub rendezvous: Option<String>,
    /// Go on from the checkpoint in that folder if there is one, and write one after each epoch
    #[arg(long)]
    pub resume: bool,
    /// Replace the model and the checkpoint of a training before in that folder
    #[arg(long)]
    pub overwrite: bool,
    /// Check the file, the data, and that a step of the model can be compiled; train nothing and write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Try the file: train two steps, validate on a batch, write a checkpoint and the model, all in a folder that is removed again
    #[arg(long, conflicts_with_all = ["dry_run", "resume", "overwrite", "output", "epochs", "steps_per_epoch"])]
    pub smoke: bool,
}

/// What to start, and how.
#[derive(Debug, clap::Args)]
pub struct LaunchArgs {
    /// The number of workers, or the least and the most, such as 2..4: fewer go on when others are lost for good
    #[arg(long, value_name = "N|MIN..MAX")]
    pub workers: WorkerCount,
    /// How often each worker is started again when it is lost; the others wait for it. 3 once all have met, and 0 with --ps, where servers
    /// that may be started again write down each push
    #[arg(long, value_name = "K")]
    pub max_restarts: Option<u32>,
    /// How long the others wait for a worker that was started again
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub recover_within: u32,
    /// The number of parameter servers beside the workers, for the strategy parameter_server
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub ps: usize,
    /// Start an evaluator beside them: a process that evaluates each checkpoint of the training, and keeps the best
    #[arg(long)]
    pub evaluator: bool,
    /// Devices of each worker: GPUs are divided among the workers, the CPU into this number of parts
    #[arg(long, value_name = "D")]
    pub devices_per_worker: Option<NonZeroUsize>,
    /// The port of the first worker in TF_CONFIG and MASTER_PORT; one that is free if it is not given
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// Show all output of all workers, each line with the worker's name
    #[arg(long)]
    pub tee: bool,
    /// Show all output of these workers only, such as 0,3
    #[arg(
        long,
        value_name = "RANKS",
        value_delimiter = ',',
        conflicts_with = "tee"
    )]
    pub ranks: Option<Vec<usize>>,
    /// The folder of the logs, a file for each stream of each worker
    #[arg(long, value_name = "FOLDER")]
    pub logs: Option<PathBuf>,
    /// How long the others may go on after the first failure
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub grace: u32,
    /// How long workers may take to end once they were told to, such as to write a checkpoint; then they are killed
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub stop_grace: u32,
    /// Let the system choose the processors of each worker
    #[arg(long)]
    pub no_pin: bool,
    /// The program and its arguments, after --
    #[arg(value_name = "PROGRAM", last = true, required = true)]
    pub program: Vec<OsString>,
}

/// How many workers there are, and how few they may become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerCount {
    /// The fewest with which the training goes on.
    pub least: NonZeroUsize,
    /// As many as are started.
    pub most: NonZeroUsize,
}

/// The most workers of a launch: each is a process with a port.
const MAX_WORKERS: usize = 10_000;

impl std::str::FromStr for WorkerCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| {
            let expected = || format!("{text:?} is no number of workers; expected 4 or 2..4");
            text.parse::<NonZeroUsize>().map_err(|_| expected())
        };
        let (least, most) = text.split_once("..").unwrap_or((text, text));
        let (least, most) = (number(least)?, number(most)?);
        if most.get() > MAX_WORKERS {
            return Err(format!(
                "{most} workers are more than one machine starts; expected at most {MAX_WORKERS}"
            ));
        }
        if least > most {
            return Err(format!(
                "{least} is more than {most}; write the fewest first"
            ));
        }
        Ok(Self { least, most })
    }
}

/// What to draw.
#[derive(Debug, clap::Args)]
pub struct PlotArgs {
    /// Folders of trainings, or of event files of any program
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,
    /// Draw this log, such as loss, and its val_ log; may be given again
    #[arg(long, value_name = "NAME")]
    pub log: Vec<String>,
    /// Write a picture to this file instead of text: PNG where its name ends in .png, else SVG
    #[arg(long, value_name = "PATH")]
    pub output: Option<PathBuf>,
}

/// What to compare.
#[derive(Debug, clap::Args)]
pub struct CompareArgs {
    /// Folders of trainings
    #[arg(value_name = "RUN", required = true, num_args = 2..)]
    pub runs: Vec<PathBuf>,
}

/// Of what training to write a trace.
#[derive(Debug, clap::Args)]
pub struct TraceArgs {
    /// What to train, on what, and how
    #[arg(value_name = "TRAIN.YAML")]
    pub file: PathBuf,
    /// The number of steps in the trace
    #[arg(long, value_name = "N", default_value = "20", value_parser = count, allow_negative_numbers = true)]
    pub steps: NonZeroUsize,
    /// The number of steps before them, the first of which are slower
    #[arg(long, value_name = "N", default_value = "5", value_parser = count, allow_negative_numbers = true)]
    pub after: NonZeroUsize,
    /// Set a key of the file to another value, as in fit.batch_size=64; may be given again
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// The file of the trace
    #[arg(long, value_name = "PATH", default_value = "trace.json")]
    pub output: PathBuf,
}

/// Of what training to print what it takes.
#[derive(Debug, clap::Args)]
pub struct EstimateArgs {
    /// What to train, on what, and how
    #[arg(value_name = "TRAIN.YAML")]
    pub file: PathBuf,
    /// Examples a step, whatever the file says
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub batch_size: Option<NonZeroUsize>,
    /// Set a key of the file to another value, as in fit.batch_size=64; may be given again
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Also find the largest batch that needs no more memory than this, such as 8GiB
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Bytes>,
}

/// What to evaluate, once or as a training goes on.
#[derive(Debug, clap::Args)]
pub struct EvaluateArgs {
    /// The model and the rows.
    #[command(flatten)]
    pub of: UseArgs,
    /// Evaluate the checkpoints of a training that runs in another process, until it is done
    #[arg(long, conflicts_with_all = ["checkpoint", "csv", "images", "data"])]
    pub follow: bool,
    /// How checkpoints are followed.
    #[command(flatten)]
    pub how: FollowArgs,
}

/// How checkpoints are followed.
#[derive(Debug, Clone, clap::Args)]
pub struct FollowArgs {
    /// Evaluate every checkpoint that is found, in place of the newest each time
    #[arg(long, requires = "follow")]
    pub each: bool,
    /// The log by which the best model is kept, in the folder `best` of the training; without it the training's `keep_best`, or the loss
    #[arg(long, value_name = "LOG", requires = "follow")]
    pub best: Option<String>,
    /// How long to wait for the next checkpoint
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 600,
        requires = "follow"
    )]
    pub wait: u32,
}

/// What to predict, and where predictions go.
#[derive(Debug, clap::Args)]
pub struct PredictArgs {
    /// The model and the rows.
    #[command(flatten)]
    pub of: UseArgs,
    /// How predictions are written
    #[arg(long, value_enum, default_value_t = Format::Csv, value_name = "FORMAT")]
    pub format: Format,
    /// Write to this file instead of standard output
    #[arg(long, value_name = "PATH")]
    pub to: Option<PathBuf>,
}

/// What to do about data.
#[derive(Debug, Subcommand)]
pub enum DataCommand {
    /// Print the kind, the number and the first of the examples
    Inspect {
        /// A file, a pattern of files in quotes, or a folder with a folder of images for each class
        #[arg(value_name = "DATA")]
        data: String,
        /// The format, where the name does not say it
        #[arg(long, value_enum)]
        format: Option<DataFormat>,
        /// How many examples to print
        #[arg(long, value_name = "N", default_value_t = 5)]
        rows: usize,
    },
    /// Write an image folder or a CSV file as TFRecord files of tf.train.Example
    Shard {
        /// A folder with a folder of images for each class, or a CSV file with the class in the last column
        #[arg(value_name = "DATA")]
        data: String,
        /// The folder of the files
        #[arg(long, value_name = "FOLDER")]
        to: PathBuf,
        /// The start of the names of the files
        #[arg(long, value_name = "NAME", default_value = "data")]
        name: String,
        /// Number of files
        #[arg(long, value_name = "N", default_value = "8", value_parser = count)]
        shards: NonZeroUsize,
        /// Replace the files of this name that are in the folder
        #[arg(long)]
        overwrite: bool,
    },
    /// Write JPEG files of made-up classes that a small model can learn: a folder for each class
    Synth {
        /// The folder of the folders
        #[arg(long, value_name = "FOLDER")]
        to: PathBuf,
        /// Number of classes
        #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100))]
        classes: u16,
        /// Number of images
        #[arg(long, value_name = "N", default_value_t = 5656)]
        count: usize,
        /// Columns of an image
        #[arg(long, value_name = "PIXELS", default_value_t = 400, value_parser = clap::value_parser!(u16).range(8..=8192))]
        width: u16,
        /// Rows of an image
        #[arg(long, value_name = "PIXELS", default_value_t = 300, value_parser = clap::value_parser!(u16).range(8..=8192))]
        height: u16,
        /// What the images follow from
        #[arg(long, value_name = "N", default_value_t = 0)]
        seed: u64,
    },
    /// Write a CSV file of made-up clicks of users on items, whose taste a recommender can find: user, item, clicked
    Clicks(crate::clicks::Clicks),
    /// Write a CSV file of made-up reviews, whose sentiment a model of texts can find: review, sentiment
    Reviews(crate::reviews::Reviews),
    /// Read examples over and over and print how many a second
    Bench {
        /// As for inspect
        #[arg(value_name = "DATA")]
        data: String,
        /// The format, where the name does not say it
        #[arg(long, value_enum)]
        format: Option<DataFormat>,
        /// For how long
        #[arg(long, value_name = "SECONDS", default_value_t = 5)]
        seconds: u32,
    },
}

/// A format of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DataFormat {
    /// TFRecord files
    Tfrecord,
    /// Tar files of samples
    Webdataset,
    /// A CSV file of numbers
    Csv,
    /// Parquet files of numbers
    Parquet,
    /// An IDX file, as MNIST's
    Idx,
    /// Arrays that NumPy saved: the rows of `.npy`, or the arrays of an archive, `.npz`
    Numpy,
    /// Lines of text
    Text,
    /// A folder with a folder of images for each class
    Images,
}

impl DataFormat {
    /// As it is typed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tfrecord => "tfrecord",
            Self::Webdataset => "webdataset",
            Self::Csv => "csv",
            Self::Parquet => "parquet",
            Self::Idx => "idx",
            Self::Numpy => "numpy",
            Self::Text => "text",
            Self::Images => "images",
        }
    }
}

/// What to do about checkpoints. A path is a checkpoint's, with the older ones beside it as `path.1` and on, or of a folder of checkpoints.
#[derive(Debug, Subcommand)]
pub enum CheckpointCommand {
    /// List a checkpoint and the older ones beside it
    Ls {
        /// The checkpoint, such as runs/digits/checkpoint, or a folder of checkpoints
        path: PathBuf,
    },
    /// Read every byte of them; ends with 1 if one is damaged
    Verify {
        /// The checkpoint, or a folder of checkpoints
        path: PathBuf,
    },
    /// Remove the oldest; damaged ones do not count, and stay
    Prune {
        /// The checkpoint, or a folder of checkpoints
        path: PathBuf,
        /// How many whole ones stay
        #[arg(long, default_value = "1")]
        keep: NonZeroUsize,
    },
    /// Write the variables of the newest that is whole to a file
    Export {
        /// The checkpoint
        path: PathBuf,
        /// The file, such as digits.safetensors
        file: PathBuf,
    },
    /// Compare two checkpoints; ends with 1 if they differ
    Diff {
        /// A checkpoint
        one: PathBuf,
        /// Another
        other: PathBuf,
    },
}

/// What to do about plugins.
#[derive(Debug, Subcommand)]
pub enum Plugin {
    /// List the plugins that are found, one a platform
    List,
    /// Install a pinned library into the per-user cache
    Install {
        /// What: cpu (the plugin) or kernels (oneDNN, which makes convolutions on the cpu faster)
        what: Library,
    },
    /// Print the path of a library
    Where {
        /// What: kernels, or the platform of a plugin: cpu, cuda, rocm, tpu or oneapi
        #[arg(default_value = "cpu")]
        what: Library,
    },
}

/// A library that is loaded at run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    /// The plugin of a platform
    Plugin(Platform),
    /// The kernels for the CPU
    Kernels,
}

impl std::str::FromStr for Library {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "kernels" {
            return Ok(Self::Kernels);
        }
        let platform = text.parse().map(Self::Plugin);
        platform.map_err(|unknown: UnknownPlatform| format!("{unknown}, or kernels"))
    }
}

impl Global {
    /// How the library shows the progress of a training.
    pub(crate) fn fit_progress(&self) -> phalanx::fit::Progress {
        match self.progress {
            Progress::Json => phalanx::fit::Progress::Json,
            _ if self.quiet => phalanx::fit::Progress::Silent,
            Progress::Auto => phalanx::fit::Progress::Auto,
            Progress::Bar => phalanx::fit::Progress::Bar,
            Progress::Plain => phalanx::fit::Progress::Plain,
        }
    }

    /// Whether standard output holds text for a person, and more than results.
    pub(crate) fn shows_text(&self) -> bool {
        !self.quiet && self.progress != Progress::Json
    }
}

/// A number of epochs, batches or examples.
pub(crate) fn count(text: &str) -> Result<NonZeroUsize, String> {
    text.parse()
        .map_err(|_| "expected a whole number from 1".to_owned())
}

/// The version of the program, of the pinned plugin, and the machine it was built for.
fn version() -> String {
    format!(
        "{}\nxla cpu plugin {}\ntarget {}-{}",
        env!("CARGO_PKG_VERSION"),
        CPU_PLUGIN.requirement(),
        std::env::consts::ARCH,
        std::env::consts::OS,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Args::command().debug_assert();
    }
}
