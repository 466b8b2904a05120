//! Workers that the launchers of clusters start, which exchange by MPI or our own way.

use std::path::Path;
use std::process::{Command, Output};

use phalanx::prelude::*;
use phalanx_testkit::Scratch;

use crate::processes::{EPOCHS, OUT, TRANSPORT, parsed, train};
use crate::{TOLERANCE, apart};

/// A launcher, Debian's package that has it, and the library by which its workers exchange.
struct Launcher {
    program: &'static str,
    package: &'static str,
    library: &'static str,
}

const LAUNCHERS: [Launcher; 2] = [
    Launcher {
        program: "mpirun.openmpi",
        package: "openmpi-bin",
        library: "Open MPI",
    },
    Launcher {
        program: "mpiexec.mpich",
        package: "mpich",
        library: "MPICH",
    },
];

/// What a worker wrote into its file.
fn output_of(worker: usize, folder: &Path) -> String {
    std::fs::read_to_string(folder.join(format!("{worker}.out"))).unwrap_or_default()
}

/// Trains by two workers that a command line starts, whose program is this one; none where the launcher is not there.
fn start(launcher: &[&str], folder: &Path, epochs: usize) -> Option<Output> {
    let mut command = Command::new("timeout");
    command.arg("180").args(launcher);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", "processes::worker", "--nocapture"]);
    command
        .env(OUT, folder)
        .env(TRANSPORT, "auto")
        .env(EPOCHS, epochs.to_string())
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        // Two of Open MPI's that make their folder of the same name at once fail.
        .env("TMPDIR", folder);
    let output = command.output().unwrap();
    // What `timeout` says of a program that is not there.
    (output.status.code() != Some(127)).then_some(output)
}

#[test]
fn two_processes_of_mpirun_train_as_one_by_its_library() {
    let one = train(&OneDeviceStrategy::on(crate::engine(0, 1)), 2, || ()).unwrap();
    for Launcher {
        program,
        package,
        library,
    } in LAUNCHERS
    {
        let folder = Scratch::temporary(program);
        let Some(output) = start(&[program, "-n", "2"], &folder, 2) else {
            phalanx_testkit::skip(format_args!(
                "no {program}; it is in Debian's package {package}"
            ));
            continue;
        };
        let chosen = format!("workers exchange by {library}");
        check(program, &output, &folder, &one, Some(&chosen));
    }
}

/// Both workers have the weights of one process, and exchanged as they should.
fn check(
    name: &str,
    output: &Output,
    folder: &Path,
    one: &[(String, Vec<f64>)],
    chosen: Option<&str>,
) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {said}");
    let chosen = chosen.unwrap_or("over TCP: direct");
    assert_eq!(said.matches(chosen).count(), 1, "{name}: {said}");
    let [a, b] = [0, 1].map(|worker| output_of(worker, folder));
    assert_eq!(a, b, "{name}: workers have different bits");
    for ((variable, ours), (_, theirs)) in one.iter().zip(parsed(&a)) {
        assert!(apart(ours, &theirs) <= TOLERANCE, "{name}: {variable}");
    }
}

/// A real Slurm of two nodes on this machine, which ends with this.
struct Slurm(Scratch);

impl Slurm {
    const TOOL: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/tools/slurm-two-nodes"
    );

    /// None where its packages are not there, or this user may not start it.
    fn start() -> Option<Self> {
        let programs = ["slurmctld", "slurmd", "srun", "munged"];
        let is_there = |program: &&str| {
            let folders = ["/usr/sbin", "/usr/bin", "/usr/local/bin"];
            folders
                .iter()
                .any(|folder| Path::new(folder).join(program).exists())
        };
        if let Some(program) = programs.iter().find(|program| !is_there(program)) {
            phalanx_testkit::skip(format_args!(
                "no {program}; it is in Debian's packages slurm-wlm and munge"
            ));
            return None;
        }
        let folder = Scratch::temporary("slurm");
        let started = Command::new(Self::TOOL).arg("start").arg(&*folder).output();
        let started = started.unwrap();
        let said = String::from_utf8_lossy(&started.stderr);
        if said.contains("needs root") || said.contains("unshare failed") {
            phalanx_testkit::skip(format_args!("{said}"));
            return None;
        }
        assert!(started.status.success(), "{said}");
        Some(Self(folder))
    }

    /// Trains by a worker on each node.
    fn srun(&self, options: &[&str], folder: &Path) -> Output {
        let config = format!("SLURM_CONF={}", self.0.join("slurm.conf").display());
        // What the nodes see of each other's memory is only the network.
        let mut command = vec!["env", &config, "UCX_TLS=tcp,self", "UCX_NET_DEVICES=lo"];
        command.extend(["srun", "--nodes=2", "--ntasks-per-node=1"]);
        command.extend(options);
        start(&command, folder, 2).unwrap()
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        // What it says of its end is no test's.
        let _ = Command::new(Self::TOOL).arg("stop").arg(&*self.0).output();
    }
}

#[test]
fn two_nodes_of_slurm_train_as_one_process() {
    let Some(slurm) = Slurm::start() else { return };
    let one = train(&OneDeviceStrategy::on(crate::engine(0, 1)), 2, || ()).unwrap();
    for (mpi, chosen) in [
        ("none", None),
        ("pmi2", Some("workers exchange by MPICH")),
        ("pmix", Some("workers exchange by Open MPI")),
    ] {
        let folder = Scratch::temporary(mpi);
        let output = slurm.srun(&[&format!("--mpi={mpi}")], &folder);
        check(mpi, &output, &folder, &one, chosen);
    }
}
