//! What launchers and schedulers set, and what follows: a table of variables and memberships, and one of contradictions.

use phalanx_cluster::{
    Coordinator, EnvError, JoinRequest, Membership, Source, Variables, explain, membership_from_env,
};

/// Variables as a shell would show them.
fn variables(text: &str) -> Variables {
    text.split_whitespace()
        .map(|pair| pair.split_once('=').unwrap())
        .collect()
}

fn membership(text: &str) -> Result<Option<Membership>, EnvError> {
    membership_from_env(&variables(text))
}

const TORCHRUN: &str =
    "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=n0 MASTER_PORT=29500";
const SLURM: &str = "SLURM_JOB_ID=17 SLURM_STEP_ID=0 SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=5 SLURM_NTASKS=5 SLURM_LOCALID=1 \
     SLURM_NODEID=1 SLURM_STEP_NODELIST=n[1-2,5] SLURM_STEP_NUM_NODES=3 SLURM_STEP_TASKS_PER_NODE=2(x2),1";
const INDEXED: &str = "JOB_COMPLETION_INDEX=2 PHALANX_WORKERS=3 HOSTNAME=train-2 PHALANX_SERVICE=workers KUBERNETES_SERVICE_HOST=10.0.0.1";
const STATEFUL: &str = "HOSTNAME=web-1 PHALANX_WORKERS=2 PHALANX_SERVICE=web KUBERNETES_SERVICE_HOST=10.0.0.1 MASTER_PORT=4000";
const OPEN_MPI: &str = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 \
     OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_RANK=1 PMIX_NAMESPACE=77@1";
const MPICH: &str =
    "PMI_RANK=0 PMI_SIZE=2 PMI_FD=7 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1 MASTER_ADDR=n7";

#[test]
fn each_environment_tells_worker_workers_and_rendezvous() {
    for (text, source, worker, workers, local, host) in [
        (TORCHRUN, Source::Torchrun, 1, 4, Some((1, 2)), "n0"),
        (SLURM, Source::Slurm, 3, 5, Some((1, 2)), "n1"),
        (INDEXED, Source::Kubernetes, 2, 3, None, "train-0.workers"),
        (STATEFUL, Source::Kubernetes, 1, 2, None, "web-0.web"),
        (OPEN_MPI, Source::Mpi, 1, 2, Some((1, 2)), "127.0.0.1"),
        (MPICH, Source::Mpi, 0, 2, Some((0, 1)), "n7"),
        (
            "RANK=0 WORLD_SIZE=1",
            Source::Torchrun,
            0,
            1,
            None,
            "127.0.0.1",
        ),
        // srun --mpi=pmi2 sets PMI's variables too: the same processes.
        (
            "SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_JOB_NODELIST=m5 PMI_RANK=1 PMI_SIZE=2 SLURM_MPI_TYPE=pmi2",
            Source::Slurm,
            1,
            2,
            None,
            "m5",
        ),
    ] {
        let membership = membership(text).unwrap().unwrap();
        assert_eq!(membership.source, source);
        assert_eq!(
            (membership.worker, membership.workers),
            (worker, workers),
            "{text}"
        );
        assert_eq!(
            membership.local.map(|local| (local.rank, local.size)),
            local,
            "{text}"
        );
        assert_eq!(membership.rendezvous.address.host, host, "{text}");
        assert_eq!(membership.is_chief(), worker == 0);
    }
}

#[test]
fn ports_are_those_that_were_given_or_follow_from_the_job() {
    let port = |text: &str| {
        let rendezvous = membership(text).unwrap().unwrap().rendezvous;
        (rendezvous.address.port, rendezvous.spare_ports)
    };
    assert_eq!(port(TORCHRUN), (29_500, 0));
    // torchrun's agent listens at MASTER_PORT itself.
    assert_eq!(
        port(&format!("{TORCHRUN} TORCHELASTIC_USE_AGENT_STORE=True")),
        (29_501, 8)
    );
    assert_eq!(port(INDEXED), (2222, 0));
    assert_eq!(port(STATEFUL), (4000, 0));
    assert_eq!(port(&format!("{SLURM} MASTER_PORT=5000")), (5000, 0));
    assert_eq!(
        port(&format!("{SLURM} PHALANX_RENDEZVOUS=n9:6000")),
        (6000, 0)
    );
    let (slurm, spare) = port(SLURM);
    assert!(slurm >= 61_000 && spare == 7);
    let other = SLURM.replace("SLURM_JOB_ID=17", "SLURM_JOB_ID=18");
    assert!(
        port(&other).0.abs_diff(slurm) > spare,
        "neighbouring jobs share ports"
    );
}

#[test]
fn addresses_of_pods_are_those_of_the_service() {
    let addresses = membership(INDEXED).unwrap().unwrap().addresses.unwrap();
    let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    assert_eq!(
        addresses,
        [
            "train-0.workers:2222",
            "train-1.workers:2222",
            "train-2.workers:2222"
        ]
    );
}

#[test]
fn the_first_source_decides() {
    let tf = r#"TF_CONFIG={"cluster":{"worker":["a:1","b:1"]},"task":{"type":"worker","index":1}}"#;
    let both = format!("{tf} RANK=1 WORLD_SIZE=2 MASTER_ADDR=x");
    assert_eq!(membership(&both).unwrap().unwrap().source, Source::TfConfig);
    let both = format!(
        "{TORCHRUN} {}",
        OPEN_MPI
            .replace("SIZE=2", "SIZE=4")
            .replace("LOCAL_SIZE=4", "LOCAL_SIZE=2")
    );
    assert_eq!(membership(&both).unwrap().unwrap().source, Source::Torchrun);
    let chosen = format!("{SLURM} {TORCHRUN} PHALANX_CLUSTER=slurm");
    assert_eq!(membership(&chosen).unwrap().unwrap().source, Source::Slurm);
    assert_eq!(
        membership(&format!("{TORCHRUN} PHALANX_CLUSTER=none")),
        Ok(None)
    );
}

/// A scheduler that started the launcher speaks of other processes than the launcher's.
#[test]
fn the_scheduler_around_a_launcher_does_not_contradict_it() {
    for inner in [
        format!("{TORCHRUN} TORCHELASTIC_RUN_ID=x"),
        OPEN_MPI.to_owned(),
        MPICH.to_owned(),
    ] {
        let nested = format!("{SLURM} {inner}");
        let source = membership(&inner).unwrap().unwrap().source;
        assert_eq!(
            membership(&nested).unwrap().unwrap().source,
            source,
            "{nested}"
        );
    }
    // A step of one task is how a launcher is started.
    let one = "SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_JOB_NODELIST=n1";
    let source = membership(&format!("{one} {TORCHRUN}"))
        .unwrap()
        .unwrap()
        .source;
    assert_eq!(source, Source::Torchrun);
}

#[test]
fn what_is_no_worker_is_none() {
    for text in [
        // A batch script, its reserved step, and an interactive one.
        "SLURM_JOB_ID=17 SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_NODELIST=n[1-2]",
        "SLURM_STEP_ID=4294967291 SLURM_PROCID=0 SLURM_NTASKS=2",
        "SLURM_STEP_ID=4294967290 SLURM_PROCID=0 SLURM_NTASKS=2",
        // Names of pods end in numbers by chance.
        "HOSTNAME=web-1 KUBERNETES_SERVICE_HOST=10.0.0.1",
        "WORLD_SIZE=1",
        "PHALANX_CLUSTER=none WORLD_SIZE=4",
        "MASTER_ADDR=n1 MASTER_PORT=29500",
        "PMIX_RANK=3",
        "RANK= WORLD_SIZE=",
    ] {
        assert_eq!(membership(text), Ok(None), "{text}");
    }
}

/// Every contradiction names both variables with their values.
#[test]
fn contradictions_name_both_variables() {
    let slurm = |from: &str, to: &str| {
        assert!(SLURM.contains(from), "{from}");
        SLURM.replace(from, to)
    };
    for (text, parts) in [
        ("RANK=4 WORLD_SIZE=4".to_owned(), ["RANK=4", "WORLD_SIZE=4", "0 to 3"]),
        ("RANK=0 WORLD_SIZE=0".into(), ["RANK=0", "WORLD_SIZE=0", "at least one"]),
        (TORCHRUN.replace("LOCAL_RANK=1", "LOCAL_RANK=2"), ["LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2", "0 to 1"]),
        (format!("{TORCHRUN} {SLURM}"), ["WORLD_SIZE=4", "SLURM_STEP_NUM_TASKS=5", "PHALANX_CLUSTER=torchrun or slurm"]),
        (
            format!("{} {SLURM}", TORCHRUN.replace("WORLD_SIZE=4 ", "WORLD_SIZE=5 ")),
            ["RANK=1", "SLURM_PROCID=3", "worker 1 or 3"],
        ),
        (
            r#"TF_CONFIG={"cluster":{"worker":["a:1","b:1"]},"task":{"type":"worker","index":1}} RANK=0 WORLD_SIZE=2 MASTER_ADDR=x"#.into(),
            ["TF_CONFIG={.. \"task\": worker:1 ..}", "RANK=0", "worker 1 or 0"],
        ),
        (slurm("SLURM_PROCID=3", "SLURM_PROCID=5"), ["SLURM_PROCID=5", "SLURM_STEP_NUM_TASKS=5", "0 to 4"]),
        (slurm("SLURM_NODEID=1", "SLURM_NODEID=3"), ["SLURM_NODEID=3", "SLURM_STEP_NODELIST=n[1-2,5]", "0 to 2"]),
        (slurm("SLURM_LOCALID=1", "SLURM_LOCALID=2"), ["SLURM_LOCALID=2", "SLURM_STEP_TASKS_PER_NODE=2(x2),1", "0 to 1"]),
        (slurm("NUM_NODES=3", "NUM_NODES=2"), ["SLURM_STEP_NUM_NODES=2", "SLURM_STEP_NODELIST=n[1-2,5]", "2 nodes or 3"]),
        (slurm("2(x2),1", "2(x3)"), ["SLURM_STEP_TASKS_PER_NODE=2(x3)", "SLURM_STEP_NUM_TASKS=5", "6 tasks or 5"]),
        (slurm("2(x2),1", "2,3"), ["SLURM_STEP_TASKS_PER_NODE=2,3", "SLURM_STEP_NODELIST=n[1-2,5]", "2 nodes or 3"]),
        (OPEN_MPI.replace("PMIX_RANK=1", "PMIX_RANK=0"), ["OMPI_COMM_WORLD_RANK=1", "PMIX_RANK=0", "worker 1 or 0"]),
        (INDEXED.replace("INDEX=2", "INDEX=3"), ["JOB_COMPLETION_INDEX=3", "PHALANX_WORKERS=3", "0 to 2"]),
    ] {
        let error = membership(&text).unwrap_err();
        assert!(matches!(error, EnvError::Contradiction { .. }), "{error:?}");
        let error = error.to_string();
        for part in parts {
            assert!(error.contains(part), "no {part:?} in {error:?}");
        }
    }
}

/// Variables, and what the error says.
const MISSING_OR_WRONG: [(&str, [&str; 2]); 23] = [
    ("WORLD_SIZE=4", ["RANK is missing", "WORLD_SIZE=4"]),
    ("RANK=1", ["WORLD_SIZE is missing", "RANK=1"]),
    (
        "RANK=one WORLD_SIZE=2",
        ["RANK: expected a whole number", "\"one\""],
    ),
    (
        "RANK=-1 WORLD_SIZE=2",
        ["RANK: expected a whole number", "\"-1\""],
    ),
    (
        "RANK=1 WORLD_SIZE=2",
        ["MASTER_ADDR is missing", "set MASTER_ADDR"],
    ),
    (
        "RANK=1 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=0",
        ["MASTER_PORT: expected a port", "\"0\""],
    ),
    (
        "SLURM_STEP_ID=0 SLURM_PROCID=0",
        ["SLURM_STEP_NUM_TASKS is missing", "srun"],
    ),
    (
        "SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=1",
        ["SLURM_STEP_NODELIST is missing", "srun"],
    ),
    (
        "SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_NODELIST=n[1-",
        ["SLURM_NODELIST at character 5", "the end of the range"],
    ),
    (
        "JOB_COMPLETION_INDEX=0",
        ["PHALANX_WORKERS is missing", "manifest"],
    ),
    (
        "JOB_COMPLETION_INDEX=0 PHALANX_WORKERS=2 HOSTNAME=a-0",
        ["PHALANX_SERVICE is missing", "headless"],
    ),
    (
        "JOB_COMPLETION_INDEX=0 PHALANX_WORKERS=2 HOSTNAME=a PHALANX_SERVICE=s",
        ["HOSTNAME: expected a name that ends in -0", "\"a\""],
    ),
    (
        "OMPI_COMM_WORLD_RANK=0",
        ["OMPI_COMM_WORLD_SIZE is missing", "launcher"],
    ),
    (
        "PHALANX_CLUSTER=pbs",
        ["PHALANX_CLUSTER: expected tf_config, torchrun", "\"pbs\""],
    ),
    (
        "PHALANX_CLUSTER=slurm",
        ["what Slurm tells is missing", "unset PHALANX_CLUSTER"],
    ),
    (
        "RANK=0 WORLD_SIZE=1 PHALANX_RENDEZVOUS=here",
        [
            "PHALANX_RENDEZVOUS: expected an address",
            "the port is missing",
        ],
    ),
    (
        "RANK=0 WORLD_SIZE=1 PHALANX_RENDEZVOUS=etcd://me:word@node1:2379",
        ["a value with `@`", "PHALANX_ETCD_PASSWORD_FILE"],
    ),
    (
        "RANK=0 WORLD_SIZE=1 PHALANX_RENDEZVOUS=etcds://me:word@node1:2379",
        ["a value with `@`", "PHALANX_ETCD_USER"],
    ),
    (
        "RANK=0 WORLD_SIZE=1 PHALANX_RENDEZVOUS=etcds://node1:2379",
        ["PHALANX_ETCD_CA is missing", "asks for TLS"],
    ),
    (
        "RANK=0 WORLD_SIZE=1 PHALANX_RENDEZVOUS=etcds://node1:2379 PHALANX_ETCD_CA=ca PHALANX_ETCD_KEY=k",
        [
            "PHALANX_ETCD_CERTIFICATE is missing",
            "PHALANX_ETCD_KEY is set",
        ],
    ),
    (
        "RANK=0 WORLD_SIZE=1 PHALANX_RENDEZVOUS=etcd://node1:2379 PHALANX_ETCD_USER=me",
        ["PHALANX_ETCD_PASSWORD_FILE is missing", "set both"],
    ),
    (
        "RANK=0 WORLD_SIZE=1 PHALANX_RENDEZVOUS=etcd://node1:2379 PHALANX_ETCD_CA=ca",
        ["PHALANX_ETCD_CA=ca", "write etcds://"],
    ),
    (
        "RANK=0 WORLD_SIZE=1 PHALANX_RENDEZVOUS=https://node1:2379",
        ["expected an address such as", "etcds://host:2379"],
    ),
];

#[test]
fn what_is_missing_or_wrong_says_what_to_do() {
    for (text, parts) in MISSING_OR_WRONG {
        let error = membership(text).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "no {part:?} in {error:?}, of {text}");
        }
        assert!(!error.contains("word@"), "a password in {error:?}");
    }
}

#[test]
fn where_rank_0_of_mpi_runs_is_left_to_it_on_several_machines() {
    let found = membership("PMI_RANK=1 PMI_SIZE=2").unwrap().unwrap();
    assert!(!found.rendezvous.is_known());
    assert!(found.to_string().contains("of rank 0's host"), "{found}");
    let data = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
    let joined = Coordinator::join(&found, JoinRequest::new("", data));
    let error = joined.err().unwrap().to_string();
    assert!(error.contains("-env MASTER_ADDR"), "{error}");
    let told = membership("PMI_RANK=1 PMI_SIZE=2 MASTER_ADDR=n7").unwrap();
    assert!(told.unwrap().rendezvous.is_known());
}

#[test]
fn an_explanation_shows_what_was_read_what_it_means_and_what_follows() {
    let explained = explain(&variables(&format!(
        "{TORCHRUN} PHALANX_JOB_ID=j1 HOME=/root"
    )))
    .to_string();
    for part in [
        "torchrun's variables:\n  RANK=1\n      the number of this worker\n",
        "MASTER_ADDR=n0",
        "phalanx:\n  PHALANX_JOB_ID=j1",
        "this process is worker 1 of 4 (torchrun's variables), coordinated at n0:29500",
        "on this machine: process 1 of 2",
        "job: j1",
    ] {
        assert!(explained.contains(part), "no {part:?} in\n{explained}");
    }
    assert!(!explained.contains("HOME"), "{explained}");
    let explained = explain(&variables(&format!("{TORCHRUN} SLURM_STEP_ID=0"))).to_string();
    assert!(
        explained.contains("note: Slurm is not compared: SLURM_PROCID is missing"),
        "{explained}"
    );
    let explained = explain(&variables("")).to_string();
    assert_eq!(
        explained,
        "this process is the only worker: no variable speaks of a cluster"
    );
}
