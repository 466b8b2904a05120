//! The variables of a task of a Slurm step.
//!
//! A batch script has most of them too, with SLURM_PROCID=0, and is no worker: only SLURM_STEP_ID tells a task of `srun`. The
//! variables of the step count, since a step may be smaller than its job. The nodes stay in the order of the list, in which Slurm
//! numbers them, so that the first runs task 0.

use super::variables::{Reader, check_rank, wrong};
use super::{EnvError, Found, SPARE_PORTS, Said, host_list, port_of_job};
use crate::{Address, LocalRank, Membership, Rendezvous, Source};

/// From this number on, steps are Slurm's own: the batch script, an interactive shell, external processes.
const FIRST_RESERVED_STEP: u64 = 0xffff_fff0;

pub(super) fn read(reader: &mut Reader<'_>) -> Result<Option<Found>, EnvError> {
    if !is_task(reader) {
        return Ok(None);
    }
    let rank = reader.first_number(&["SLURM_PROCID"], "the number of this task")?;
    let sizes = ["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"];
    let size = reader.first_number(&sizes, "the tasks of the step")?;
    let (worker, rank) = rank.ok_or_else(|| missing("SLURM_PROCID"))?;
    let (workers, size) = size.ok_or_else(|| missing("SLURM_STEP_NUM_TASKS"))?;
    check_rank(&worker, rank, &workers, size)?;

    let nodes = nodes(reader)?;
    let job = job(reader);
    let mut membership = Membership::new(size, rank, Address::new("127.0.0.1", 1));
    membership.source = Source::Slurm;
    membership.rendezvous = rendezvous(reader, &nodes, &job)?;
    membership.local = local(reader, &workers, size, &nodes)?;
    membership.job = job;
    Ok(Some(Found {
        membership,
        workers,
        worker,
        by_launcher: false,
    }))
}

fn is_task(reader: &mut Reader<'_>) -> bool {
    let Some(step) = reader.text("SLURM_STEP_ID", "the step of the job") else {
        if reader.has("SLURM_JOB_ID") {
            reader.note(
                "a job of Slurm, but not a task of a step: start the program by srun to have its workers".into(),
            );
        }
        return false;
    };
    let own = step
        .parse()
        .is_ok_and(|step: u64| step >= FIRST_RESERVED_STEP);
    if own {
        reader.note(format!(
            "SLURM_STEP_ID={step} is Slurm's own step, not one of srun: no workers follow from it"
        ));
    }
    !own
}

fn missing(name: &str) -> EnvError {
    EnvError::Missing {
        missing: name.into(),
        because: "SLURM_STEP_ID says that this is a task of a step".into(),
        next: "let srun pass its variables on (srun --export=ALL)".into(),
    }
}

/// The nodes of the step with the variable that lists them.
struct Nodes {
    said: Said,
    hosts: Vec<String>,
}

fn nodes(reader: &mut Reader<'_>) -> Result<Nodes, EnvError> {
    let names = [
        "SLURM_STEP_NODELIST",
        "SLURM_JOB_NODELIST",
        "SLURM_NODELIST",
    ];
    let name = names.into_iter().find(|name| reader.has(name));
    let name = name.ok_or_else(|| missing("SLURM_STEP_NODELIST"))?;
    let list = reader.text(name, "the nodes, in order").unwrap_or_default();
    let hosts = host_list::expand(list).map_err(|error| EnvError::Value {
        variable: name,
        place: format!(" at character {}", error.at + 1),
        got: format!("{list:?} ({})", error.problem),
        expected: "a list of hosts such as n[1-3,07-10],m5".into(),
        next: "take it from Slurm as it is".into(),
    })?;
    Ok(Nodes {
        said: Said::new(name, list),
        hosts,
    })
}

fn job(reader: &mut Reader<'_>) -> String {
    let job = ["SLURM_JOB_ID", "SLURM_JOBID"]
        .into_iter()
        .find_map(|name| reader.text(name, "the number of the job"));
    let step = reader.text("SLURM_STEP_ID", "the step of the job");
    let restart = reader.text("SLURM_RESTART_COUNT", "how often the job was requeued");
    let mut text = format!("{}.{}", job.unwrap_or("0"), step.unwrap_or("0"));
    if let Some(restart) = restart {
        text.push('r');
        text.push_str(restart);
    }
    text
}

/// The first node, unless MASTER_ADDR says another; a port that follows from the job, unless MASTER_PORT says one.
fn rendezvous(reader: &mut Reader<'_>, nodes: &Nodes, job: &str) -> Result<Rendezvous, EnvError> {
    let host = reader.text("MASTER_ADDR", "the host of worker 0");
    let host = host.unwrap_or(&nodes.hosts[0]);
    Ok(
        match reader.port("MASTER_PORT", "the port at which workers meet")? {
            Some(port) => Rendezvous::at(Address::new(host, port)),
            None => Rendezvous {
                address: Address::new(host, port_of_job(job)),
                spare_ports: SPARE_PORTS - 1,
                etcd: None,
            },
        },
    )
}

/// This task's place on its node, with all that the variables say about nodes compared.
fn local(
    reader: &mut Reader<'_>,
    workers: &Said,
    tasks: usize,
    nodes: &Nodes,
) -> Result<Option<LocalRank>, EnvError> {
    let count = nodes.hosts.len();
    let counts = [
        "SLURM_STEP_NUM_NODES",
        "SLURM_NNODES",
        "SLURM_JOB_NUM_NODES",
    ];
    // Those of the job belong to the list of the job.
    let counts = match nodes.said.variable.as_str() {
        "SLURM_STEP_NODELIST" => &counts[..1],
        _ => &counts[1..],
    };
    if let Some((said, number)) = reader.first_number(counts, "the number of nodes")?
        && number != count
    {
        return Err(contradiction(
            &said,
            &nodes.said,
            format!("{number} nodes or {count}"),
        ));
    }
    let node = reader.first_number(&["SLURM_NODEID"], "the number of this node")?;
    if let Some((said, node)) = &node {
        check_rank(said, *node, &nodes.said, count)?;
    }
    let rank = reader.first_number(&["SLURM_LOCALID"], "the number of this task on its node")?;
    let size = tasks_of_node(reader, workers, tasks, nodes, node.map(|(_, node)| node))?;
    let (Some((said, rank)), Some((of, size))) = (rank, size) else {
        return Ok(None);
    };
    check_rank(&said, rank, &of, size)?;
    Ok(Some(LocalRank { rank, size }))
}

/// The tasks of this node, with the variable that tells.
fn tasks_of_node(
    reader: &mut Reader<'_>,
    workers: &Said,
    tasks: usize,
    nodes: &Nodes,
    node: Option<usize>,
) -> Result<Option<(Said, usize)>, EnvError> {
    const NAME: &str = "SLURM_STEP_TASKS_PER_NODE";
    let Some(list) = reader.text(NAME, "the tasks of each node") else {
        return Ok(None);
    };
    let runs = host_list::tasks_per_node(list)
        .map_err(|_| wrong(NAME, list, "tasks of each node, such as 2(x3),1"))?;
    let said = Said::new(NAME, list);
    let sum = |values: &mut dyn Iterator<Item = usize>| values.fold(0, usize::saturating_add);
    let of_nodes = sum(&mut runs.iter().map(|&(_, nodes)| nodes));
    if of_nodes != nodes.hosts.len() {
        let why = format!("{of_nodes} nodes or {}", nodes.hosts.len());
        return Err(contradiction(&said, &nodes.said, why));
    }
    let of_tasks = sum(&mut runs
        .iter()
        .map(|&(tasks, nodes)| tasks.saturating_mul(nodes)));
    if of_tasks != tasks {
        return Err(contradiction(
            &said,
            workers,
            format!("{of_tasks} tasks or {tasks}"),
        ));
    }
    let mut each = runs
        .iter()
        .flat_map(|&(tasks, nodes)| std::iter::repeat_n(tasks, nodes));
    Ok(node
        .and_then(|node| each.nth(node))
        .map(|tasks| (said, tasks)))
}

fn contradiction(first: &Said, second: &Said, why: String) -> EnvError {
    EnvError::Contradiction {
        first: Box::new(first.clone()),
        second: Box::new(second.clone()),
        why,
        next: "take both from Slurm as they are: one was set or kept by hand".into(),
    }
}
