//! Tasks of the workspace, run as `cargo xtask TASK`.
#![forbid(unsafe_code)]

mod architecture;
mod bench;
mod built;
mod check;
mod cloud;
mod counts;
mod deny;
mod directions;
mod examples;
mod fences;
mod fuzz_gradients;
mod kernel_tests;
mod language;
mod process;
mod public_types;
mod sizes;
mod source;
mod table;
mod workspace;

use std::process::ExitCode;

const HELP: &str = "\
usage: cargo xtask check [--skip NAME]... [NAME]...   all checks of a change, or those named, or all but some
       cargo xtask check --list                      the checks, one a line
       cargo xtask bench all [--python PATH]... [--only NAME]... [--quick] [--write]
                                                     every workload with its bar, in one table; --write puts it into the README
       cargo xtask bench breadth --python PATH... [--only NAME]... [--quick] [--write]
                                                     small models of many kinds, which Keras writes; --write renews their rows
       cargo xtask bench checkpoints [--python PATH]... [--quick] [--write]
                                                     100 MB saved and restored, beside TensorFlow, safetensors and Orbax
       cargo xtask bench collectives [--python PATH]... [--quick] [--write]
                                                     all-reduces between processes, beside gloo, TensorFlow and MPI
       cargo xtask bench embeddings [--python PATH]... [--quick] [--write]
                                                     steps that name few rows of a small and of a large table
       cargo xtask bench input [--python PATH]... [--quick] [--write]
                                                     reading records and images, beside tf.data and DataLoader
       cargo xtask bench jobs [--bin FOLDER] [--quick] [--write]
                                                     a job's way from its submission to its first step
       cargo xtask bench limits [--only NAME]... [--quick] | [--quick] --write
       cargo xtask bench profile [--only NAME]... | --write
                                                     what the machine could do, and the part of it that each workload reaches
       cargo xtask bench models [--python PATH]... [--only NAME]... [--quick] [--write]
                                                     training steps and predictions of whole models, beside the same
       cargo xtask bench multiworker [--python PATH]... [--only NAME]... [--quick] [--write]
                                                     one worker process and two, beside DistributedDataParallel;
                                                     --write keeps the table
       cargo xtask bench parameter-servers [--python PATH] [--quick] [--write]
                                                     a slow worker in each mode; beside TensorFlow's ParameterServerStrategy
       cargo xtask bench recovery [--python PATH] [--quick] [--write]
                                                     a worker is killed: the time to its replacement's first step, beside torchrun
       cargo xtask bench scaling [--python PATH]... [--only NAME]... [--quick] [--write]
                                                     two replicas on two processors, beside one and beside the same
       cargo xtask bench single [--python PATH]... [--quick] [--write]
                                                     whole steps and epochs beside PyTorch's, TensorFlow's and JAX'
                                                     where a Python given has them; --write keeps the table
       cargo xtask fuzz-gradients [--seed S] [--minutes M] [--python PATH] [--keras PATH]
                                                     random networks whose gradients are compared with f64, 2 minutes;
                                                     with Keras, random losses and metrics then
       cargo xtask table [--tenth N]                 replicas: every case in every way, or a tenth (0 to 9) of them
       cargo xtask public-types                      writes docs/public-types.md, the list of public types
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["check", ref rest @ ..] => check::command(rest),
        ["bench", "all", ref rest @ ..] => bench::all(rest),
        ["bench", "breadth", ref rest @ ..] => bench::breadth(rest),
        ["bench", "checkpoints", ref rest @ ..] => bench::checkpoints(rest),
        ["bench", "collectives", ref rest @ ..] => bench::collectives(rest),
        ["bench", "embeddings", ref rest @ ..] => bench::embeddings(rest),
        ["bench", "input", ref rest @ ..] => bench::input(rest),
        ["bench", "jobs", ref rest @ ..] => bench::jobs(rest),
        ["bench", "limits", ref rest @ ..] => bench::limits(rest),
        ["bench", "profile", ref rest @ ..] => bench::profile(rest),
        ["bench", "models", ref rest @ ..] => bench::models(rest),
        ["bench", "multiworker", ref rest @ ..] => bench::multiworker(rest),
        ["bench", "parameter-servers", ref rest @ ..] => bench::parameter_servers(rest),
        ["bench", "recovery", ref rest @ ..] => bench::recovery(rest),
        ["bench", "scaling", ref rest @ ..] => bench::scaling(rest),
        ["bench", "single", ref rest @ ..] => bench::single(rest),
        ["table", ref rest @ ..] => table::command(rest),
        ["public-types"] => public_types::command(),
        ["fuzz-gradients", ref rest @ ..] => fuzz_gradients::command(rest),
        [] | ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        [task, ..] => Err(format!("found no task {task:?}\n{HELP}")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{}", message.trim_end());
            ExitCode::FAILURE
        }
    }
}
