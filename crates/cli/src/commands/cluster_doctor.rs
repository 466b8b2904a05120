//! `phalanx doctor --cluster`: started on every node as the training is.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use phalanx_cluster::{
    ClusterError, Coordinator, JoinRequest, Membership, Roster, Variables, explain,
};
use phalanx_collectives::{Communicator, CommunicatorOptions};
use phalanx_pjrt::Platform;
use phalanx_proof::Secret;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Context;
use crate::args::DoctorArgs;
use crate::cluster_doctor::{
    NodeFacts, clocks, environment, equality, folder, names, network, of_measured, ports, sharing,
};
use crate::doctor::Check;
use crate::failure::{Exit, Failure};
use crate::output::notice;

/// The longest that all others wait where one has come to an exchange.
const MEET_WITHIN: Duration = Duration::from_secs(60);

/// Looks at this node, meets the others, compares, and measures the network between all.
pub(crate) fn run(context: &mut Context, args: &DoctorArgs) -> Result<(), Failure> {
    let mut lines = Lines {
        context,
        checks: Vec::new(),
    };
    let outcome = explain(&Variables::of_process()).outcome;
    lines.add(environment(outcome.as_ref().map(Option::as_ref)))?;
    if let Ok(Some(membership)) = &outcome
        && membership.task.kind.trains()
    {
        of_this_node(&mut lines, membership)?;
        if let Err(check) = of_all(&mut lines, membership, args)? {
            lines.add(check)?;
        }
    }
    let failed = lines
        .checks
        .iter()
        .filter(|check| check.is_failure())
        .count();
    match failed {
        0 => Ok(()),
        count => Err(Failure::new(
            Exit::NotReady,
            format!("these machines are not ready to train together: {count} checks failed"),
        )
        .next("do what the lines marked fail say")),
    }
}

/// What was found so far, printed as it is found.
struct Lines<'a> {
    context: &'a mut Context,
    checks: Vec<Check>,
}

impl Lines<'_> {
    fn add(&mut self, check: Check) -> Result<(), Failure> {
        self.context.output.line(&check)?;
        self.checks.push(check);
        Ok(())
    }
}

fn of_this_node(lines: &mut Lines<'_>, membership: &Membership) -> Result<(), Failure> {
    lines.add(names(membership))?;
    lines.add(ports(membership))?;
    let next = "free some space there, or set TMPDIR to a folder that can be written to";
    lines.add(folder("temporary", &std::env::temp_dir(), next))?;
    if let Some(cache) = lines.context.search.cache_dir() {
        let next =
            "free some space there, or set PHALANX_CACHE_DIR to a folder that can be written to";
        lines.add(folder("cache", &cache, next))?;
    }
    Ok(())
}

/// What is found out together with the others; the inner error is why it ended early.
fn of_all(
    lines: &mut Lines<'_>,
    membership: &Membership,
    args: &DoctorArgs,
) -> Result<Result<(), Check>, Failure> {
    let secret = args.secret_file.as_deref().map(Secret::read).transpose();
    let secret = match secret {
        Ok(secret) => secret,
        Err(error) => {
            return Ok(Err(Check::fail(
                "secret",
                error.to_string(),
                "correct --secret-file",
            )));
        }
    };
    let listener = match membership.data_listener() {
        Ok(listener) => listener,
        Err(error) => {
            let found = format!("cannot listen for data of other workers: {error}");
            return Ok(Err(Check::fail(
                "ports",
                found,
                "look at the interfaces of this machine (ip address)",
            )));
        }
    };
    let (coordinator, roster) = match join(membership, args, secret.clone(), &listener) {
        Ok(joined) => joined,
        Err(check) => return Ok(Err(check)),
    };
    lines.add(Check::ok(
        "workers",
        format!("all {} have come", roster.workers.len()),
    ))?;
    let met = Met {
        membership,
        coordinator,
        roster,
        args,
    };
    let facts = match met.compare(lines)? {
        Ok(facts) => facts,
        Err(check) => return Ok(Err(check)),
    };
    if let Err(check) = met.measure(lines, &listener, secret)? {
        met.coordinator
            .report_failure(format!("says: {}", check.found));
        return Ok(Err(check));
    }
    Ok(met.tell(lines, &facts)?.map(|()| {
        // What the others do at their end is no fault of this node.
        let _ = met.coordinator.leave(MEET_WITHIN);
    }))
}

fn join(
    membership: &Membership,
    args: &DoctorArgs,
    secret: Option<Secret>,
    listener: &std::net::TcpListener,
) -> Result<(Coordinator, Roster), Check> {
    let address = listener.local_addr();
    let address = address.map_err(|error| {
        Check::fail(
            "ports",
            error.to_string(),
            "look at the interfaces of this machine",
        )
    })?;
    let mut request = JoinRequest::new(env!("CARGO_PKG_VERSION"), address)
        .deadline(Duration::from_secs(args.within.into()))
        .on_waiting(|line| notice(line));
    if let Some(secret) = secret {
        request = request.secret(secret);
    }
    Coordinator::join(membership, request).map_err(|error| not_met(&error))
}

fn not_met(error: &ClusterError) -> Check {
    let next = match error {
        ClusterError::NotJoined { .. } => {
            "start the doctor on every node within the deadline (--within), and look at what it says there"
        }
        ClusterError::CannotListen { .. } => "see the line of the ports",
        _ => "correct what the line says; `phalanx env --explain` prints what each node was told",
    };
    Check::fail("workers", error.to_string(), next)
}

/// All workers, once they have met.
struct Met<'a> {
    membership: &'a Membership,
    coordinator: Coordinator,
    roster: Roster,
    args: &'a DoctorArgs,
}

/// A line about a fault that a node found out by itself, for the first worker to print.
#[derive(Serialize, Deserialize)]
struct Told {
    line: String,
    is_failure: bool,
}

impl Met<'_> {
    fn exchange(&self, what: &str, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>, Check> {
        let all = self.coordinator.exchange(what, bytes, MEET_WITHIN);
        all.map_err(|error| not_met(&error))
    }

    /// Compares clocks, versions and folders.
    fn compare(&self, lines: &mut Lines<'_>) -> Result<Result<Vec<NodeFacts>, Check>, Failure> {
        let own = match self.facts(lines.context) {
            Ok(own) => own,
            Err(check) => {
                self.coordinator.report_failure(check.found.clone());
                return Ok(Err(check));
            }
        };
        let (facts, met) = match self.gather(own) {
            Ok(gathered) => gathered,
            Err(check) => return Ok(Err(check)),
        };
        lines.add(clocks(&facts, met))?;
        for check in equality(&facts) {
            lines.add(check)?;
        }
        let must: Vec<String> = self
            .args
            .shared
            .iter()
            .map(|folder| folder.display().to_string())
            .collect();
        for check in sharing(&facts, &must) {
            lines.add(check)?;
        }
        Ok(Ok(facts))
    }

    fn facts(&self, context: &Context) -> Result<NodeFacts, Check> {
        let mut equal = BTreeMap::new();
        let mut hash = |name: String, path: &Path| {
            let hashed = hash_of(path).map_err(|error| {
                Check::fail(
                    "versions",
                    format!("{} cannot be read: {error}", path.display()),
                    "correct --same",
                )
            })?;
            equal.insert(name, hashed);
            Ok(())
        };
        if let Ok(program) = std::env::current_exe() {
            hash("program (phalanx)".into(), &program)?;
        }
        for path in &self.args.same {
            hash(path.display().to_string(), path)?;
        }
        if let Ok(plugin) = context
            .search
            .find(Platform::Cpu, context.global.plugin.as_deref())
        {
            let size = fs::metadata(&plugin.path).map_or(0, |file| file.len());
            equal.insert("cpu plugin".into(), format!("a file of {size} bytes"));
        }
        equal.insert("architecture".into(), std::env::consts::ARCH.into());
        let cache = context.search.cache_dir().into_iter();
        let folders: Vec<PathBuf> = cache.chain(self.args.shared.clone()).collect();
        let token = self.token()?;
        Ok(NodeFacts {
            host: rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
            clock: 0.0,
            equal,
            shared: self.see(&token, &folders)?,
        })
    }

    /// What worker 0 calls the files that it writes where others should see them.
    fn token(&self) -> Result<String, Check> {
        let own = format!("{}-{:.9}", std::process::id(), now());
        let all = self.exchange("a name", own.into_bytes())?;
        Ok(String::from_utf8_lossy(&all[0]).into_owned())
    }

    /// Whether this node sees in each folder what worker 0 has written there.
    fn see(&self, token: &str, folders: &[PathBuf]) -> Result<BTreeMap<String, bool>, Check> {
        let path = |folder: &PathBuf| folder.join(format!(".phalanx-doctor-{token}"));
        let is_writer = self.membership.worker == 0;
        if is_writer {
            for folder in folders {
                // Where it cannot be written nobody sees it, which is said.
                let _ = fs::write(path(folder), token);
            }
        }
        self.exchange("files are written", Vec::new())?;
        let sees =
            |folder: &PathBuf| fs::read_to_string(path(folder)).is_ok_and(|text| text == token);
        let seen = folders
            .iter()
            .map(|folder| (folder.display().to_string(), sees(folder)))
            .collect();
        self.exchange("files are seen", Vec::new())?;
        if is_writer {
            for folder in folders {
                let _ = fs::remove_file(path(folder));
            }
        }
        Ok(seen)
    }

    /// The facts of all, with clocks read at the same time, and how long it took until all had met.
    fn gather(&self, mut own: NodeFacts) -> Result<(Vec<NodeFacts>, Duration), Check> {
        let start = Instant::now();
        self.exchange("the time", Vec::new())?;
        own.clock = now();
        let met = start.elapsed();
        let bytes = serde_json::to_vec(&own).unwrap_or_default();
        let all = self.exchange("facts", bytes)?;
        let parsed = all.iter().enumerate().map(|(worker, bytes)| {
            serde_json::from_slice(bytes).map_err(|error| {
                Check::fail(
                    "versions",
                    format!("worker {worker} says what this one does not understand: {error}"),
                    "install the same version on all machines",
                )
            })
        });
        Ok((parsed.collect::<Result<_, _>>()?, met))
    }

    /// Connects to the others for data, and exchanges.
    fn measure(
        &self,
        lines: &mut Lines<'_>,
        listener: &std::net::TcpListener,
        secret: Option<Secret>,
    ) -> Result<Result<(), Check>, Failure> {
        // A node that ends meanwhile ends the wait for it.
        let cancel = Arc::new(AtomicBool::new(false));
        let cancelled = Arc::clone(&cancel);
        self.coordinator
            .on_failure(move |_| cancelled.store(true, Ordering::Release));
        let options = CommunicatorOptions {
            cancel: Some(cancel),
            job: self.membership.job.clone(),
            generation: self.roster.generation,
            timeout: MEET_WITHIN,
            join_timeout: Duration::from_secs(self.args.within.into()).min(MEET_WITHIN),
            secret,
            ..CommunicatorOptions::default()
        };
        let rank = self.roster.rank(self.membership.worker).unwrap_or_default();
        let connected = Communicator::connect(rank, &self.roster.addresses, listener, &options);
        let communicator = match connected {
            Ok(communicator) => communicator,
            Err(error) => {
                if let Some(failure) = self.coordinator.first_failure() {
                    let next = "see what the doctor says on that machine";
                    return Ok(Err(Check::fail("data ports", failure.to_string(), next)));
                }
                let next = "open the ports between the machines: the ones in TF_CONFIG, or the ones that the system hands out (sysctl net.ipv4.ip_local_port_range)";
                return Ok(Err(Check::fail("data ports", error.to_string(), next)));
            }
        };
        match network(&communicator) {
            Ok(measured) => {
                for check in of_measured(&measured, communicator.size()) {
                    lines.add(check)?;
                }
                Ok(Ok(()))
            }
            Err(check) => Ok(Err(check)),
        }
    }

    /// Tells the first worker what each node found out of itself, which prints it.
    fn tell(
        &self,
        lines: &mut Lines<'_>,
        facts: &[NodeFacts],
    ) -> Result<Result<(), Check>, Failure> {
        let is_fault = |check: &&Check| check.state != crate::doctor::State::Ok;
        let faults = lines.checks.iter().filter(is_fault);
        let told: Vec<Told> = faults
            .map(|check| Told {
                line: check.to_string(),
                is_failure: check.is_failure(),
            })
            .collect();
        let all = match self.exchange("faults", serde_json::to_vec(&told).unwrap_or_default()) {
            Ok(all) => all,
            Err(check) => return Ok(Err(check)),
        };
        if self.membership.worker != 0 {
            return Ok(Ok(()));
        }
        let own: Vec<String> = told.into_iter().map(|told| told.line).collect();
        for (worker, bytes) in all.iter().enumerate().skip(1) {
            let told: Vec<Told> = serde_json::from_slice(bytes).unwrap_or_default();
            for Told { line, is_failure } in
                told.into_iter().filter(|told| !own.contains(&told.line))
            {
                let found = format!("worker {worker} ({}): {line}", facts[worker].host);
                lines.add(match is_failure {
                    true => Check::fail("elsewhere", found, "do it on that machine"),
                    false => Check::warn("elsewhere", found, "do it on that machine"),
                })?;
            }
        }
        Ok(Ok(()))
    }
}

fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

/// The first bytes of the SHA-256 of a file.
fn hash_of(path: &Path) -> std::io::Result<String> {
    let mut hasher = Sha256::new();
    let mut file = fs::File::open(path)?;
    let mut block = vec![0; 1 << 20];
    loop {
        let read = std::io::Read::read(&mut file, &mut block)?;
        if read == 0 {
            break;
        }
        hasher.update(&block[..read]);
    }
    let digest = hasher.finalize();
    Ok(digest
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect())
}
