//! The daemon: answers the API, keeps the queue, and starts a supervisor for each job that there is room for.
//!
//! It owns nothing that is not on disk: killed at any moment, the next one finds every job in its log, and supervisors that go on.

mod access;
mod connections;
mod dashboard;
mod error;
mod filter;
mod machine;
mod prometheus;
mod queue;
mod resource;
mod routes;
mod stream;
mod times;
mod tls;

pub(crate) use routes::submitted;
pub(crate) use stream::is_task;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use access::Cookie;
use connections::{Connections, Limits};
use phalanx_launch::curves::CurveReader;
use phalanx_launch::executor::Gpus;
use phalanx_launch::lifecycle::{Event, Life, State};
use phalanx_launch::spec::JobName;
use phalanx_launch::store::{Followed, Store, StoreError, now};
use prometheus::Histories;
use queue::Terms;
use rustls::ServerConfig;
use serde_json::{Value as Json, json};
use tls::TlsListener;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::args::ServeArgs;
use crate::failure::Failure;

/// The file that says where the daemon listens.
pub(crate) const WHERE: &str = "daemon.json";
/// The file of the token.
pub(crate) const TOKEN: &str = "token";
const LOCK: &str = "daemon.lock";
/// How long requests that are being answered, and streams that are read, may hold up the end of the daemon.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
/// Of more jobs than these curves are read anew.
const MOST_READERS: usize = 16;

/// What requests and the queue share.
pub(crate) struct Shared {
    store: Store,
    jobs: Mutex<BTreeMap<JobName, Followed>>,
    /// What jobs that were in the queue ask of it.
    terms: Mutex<BTreeMap<JobName, Terms>>,
    token: String,
    /// What browsers have in its place.
    cookie: Cookie,
    /// Names under which this daemon is reached, as Host has them.
    hosts: Vec<String>,
    /// Whether it serves by TLS.
    is_secure: bool,
    address: SocketAddr,
    /// What was read of the curves of jobs that are looked at.
    curves: Mutex<BTreeMap<JobName, Arc<Mutex<CurveReader>>>>,
    /// What was read of the histories of jobs that run, for `/metrics`.
    histories: Mutex<Histories>,
    /// The first job that waits for what others have of this machine, and for what.
    lacking: Mutex<Option<(JobName, String)>>,
    /// Raised whenever a job changes.
    changes: watch::Sender<u64>,
    /// Milliseconds since 1970 of the last request, and how many are being answered.
    asked: AtomicU64,
    answering: AtomicUsize,
    stop: AtomicBool,
}

impl Shared {
    fn jobs(&self) -> MutexGuard<'_, BTreeMap<JobName, Followed>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the daemon is about to end, and takes no job any more.
    fn is_ending(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// What a job asks of the queue; its file is read once for that.
    fn terms(&self, life: &Life) -> Terms {
        let mut all = self.terms.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.get(&life.job.name).copied();
        known.unwrap_or_else(|| {
            let terms = Terms::of(life);
            all.insert(life.job.name.clone(), terms);
            terms
        })
    }

    /// The reader of a job's curves; of some jobs at a time.
    fn curves(&self, job: &JobName) -> Arc<Mutex<CurveReader>> {
        let mut all = self.curves.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST_READERS && !all.contains_key(job) {
            all.clear();
        }
        Arc::clone(all.entry(job.clone()).or_default())
    }

    /// A job as the interface has it. `position` is its place in the queue, from 1.
    fn shown(&self, life: &Life, position: Option<usize>) -> Json {
        let mut job = resource::job(life, position);
        let lacking = self.lacking.lock().unwrap_or_else(PoisonError::into_inner);
        let own = lacking.as_ref().filter(|(name, _)| *name == life.job.name);
        if let (State::Queued, Some((_, what))) = (life.state, own) {
            job["phalanx"]["waitsFor"] = json!(what);
        }
        job
    }

    /// Notes which job is the first that waits for what others have, and for what; tells those who watch if it is another.
    fn lacks(&self, lacking: Option<(JobName, String)>) {
        let mut noted = self.lacking.lock().unwrap_or_else(PoisonError::into_inner);
        if *noted == lacking {
            return;
        }
        *noted = lacking;
        drop(noted);
        self.changed();
    }

    /// Has a job end; one that was told so already ends at once.
    fn cancel(&self, name: &JobName) -> Result<(), StoreError> {
        let decide = |life: &Life| {
            Ok::<_, StoreError>(Some(match life.state {
                State::Cancelling => Event::Hurried,
                _ => Event::Cancelling {
                    why: "it was cancelled".to_owned(),
                },
            }))
        };
        let missing = || StoreError::NoJob(name.clone());
        let mut jobs = self.jobs();
        let followed = jobs.get_mut(name).ok_or_else(missing)?;
        self.store.update(followed, decide)?;
        drop(jobs);
        self.changed();
        Ok(())
    }

    /// Tells those who watch that a job has changed.
    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }
}

#[cfg(test)]
impl Shared {
    /// What a daemon of a store shares that serves nobody.
    fn of(store: Store) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        Self {
            jobs: Mutex::new(queue::load(&store)),
            terms: Mutex::default(),
            store,
            token: String::new(),
            cookie: Cookie::draw(1).unwrap(),
            hosts: Vec::new(),
            is_secure: false,
            address,
            curves: Mutex::default(),
            histories: Mutex::default(),
            lacking: Mutex::default(),
            changes: watch::channel(0).0,
            asked: AtomicU64::new(0),
            answering: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        }
    }
}

/// Serves until nothing has been asked for a while. Another daemon that serves already is no failure.
pub(crate) fn serve(root: &Path, args: &ServeArgs) -> Result<(), Failure> {
    let store = Store::open(root).map_err(Failure::not_ready)?;
    let Some(_lock) = lock(root).map_err(|error| refused("lock", root, &error))? else {
        eprintln!("another daemon serves {} already", root.display());
        return Ok(());
    };
    // A daemon ends neither with the terminal nor with the command that started it.
    let _ = rustix::process::setsid();
    let token = token(root).map_err(|error| refused("write the token in", root, &error))?;
    let tls = args.tls_certificate.as_ref().zip(args.tls_key.as_ref());
    let tls = tls.map(|(certificate, key)| tls::config(certificate, key));
    let tls = tls.transpose()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(Failure::not_ready)?;
    runtime.block_on(async {
        let listener = TcpListener::bind(&args.listen).await;
        let listener = listener.map_err(|error| {
            let listen = &args.listen;
            Failure::not_ready(format!(
                "cannot listen at {listen}: {error}; choose another with --listen"
            ))
        })?;
        let address = listener.local_addr().map_err(Failure::not_ready)?;
        if tls.is_none() && !address.ip().is_loopback() {
            return Err(Failure::usage(format!(
                "--listen {} is reached from other machines, and without TLS all on the way read the token; \
                 add --tls-certificate and --tls-key, or listen at 127.0.0.1",
                args.listen
            )));
        }
        let cookie = Cookie::draw(address.port()).map_err(Failure::not_ready)?;
        let shared = Arc::new(Shared {
            jobs: Mutex::new(queue::load(&store)),
            terms: Mutex::default(),
            store,
            token,
            cookie,
            hosts: access::hosts(address, &args.host, tls.is_some()),
            is_secure: tls.is_some(),
            address,
            curves: Mutex::default(),
            histories: Mutex::default(),
            lacking: Mutex::default(),
            changes: watch::channel(0).0,
            asked: AtomicU64::new(now()),
            answering: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        });
        let scheduler = queue::start(&shared, args).map_err(Failure::not_ready)?;
        announce(root, address, args).map_err(|error| refused("write into", root, &error))?;
        let served = answer(&shared, listener, tls).await;
        shared.stop.store(true, Ordering::Relaxed);
        let _ = scheduler.join();
        let _ = fs::remove_file(root.join(WHERE));
        served.map_err(Failure::not_ready)
    })
}

/// Answers requests until the daemon stops.
async fn answer(
    shared: &Arc<Shared>,
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
) -> io::Result<()> {
    let router = routes::router(shared);
    let listener = Connections::new(listener, Limits::DEFAULT);
    let signal = || stopped(Arc::clone(shared));
    let served = async {
        match tls {
            None => {
                axum::serve(listener, router)
                    .with_graceful_shutdown(signal())
                    .await
            }
            Some(config) => {
                let listener = TlsListener::new(listener, config)?;
                axum::serve(listener, router)
                    .with_graceful_shutdown(signal())
                    .await
            }
        }
    };
    // A reader that pauses, or who does not finish a request, does not keep others from the next daemon.
    let late = async {
        signal().await;
        tokio::time::sleep(LAST_ANSWERS).await;
    };
    tokio::select! {
        served = served => served,
        () = late => Ok(()),
    }
}

fn refused(what: &str, path: &Path, error: &io::Error) -> Failure {
    let path = path.display();
    Failure::not_ready(format!(
        "cannot {what} {path}: {error}; choose another folder with --root"
    ))
}

async fn stopped(shared: Arc<Shared>) {
    while !shared.is_ending() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn lock(root: &Path) -> io::Result<Option<File>> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(root.join(LOCK))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(fs::TryLockError::WouldBlock) => Ok(None),
        Err(fs::TryLockError::Error(error)) => Err(error),
    }
}

/// The token of this folder, made at the first start, for its owner alone. One that others may have read is made anew.
fn token(root: &Path) -> io::Result<String> {
    let path = root.join(TOKEN);
    if let Ok(token) = fs::read_to_string(&path)
        && token.len() >= 32
        && fs::metadata(&path)?.mode() & 0o077 == 0
    {
        return Ok(token);
    }
    let token = phalanx_proof::draw_hex::<32>()?;
    replace(&path, token.as_bytes())?;
    Ok(token)
}

/// Says where the daemon is. By TLS that is a name of its certificate.
fn announce(root: &Path, address: SocketAddr, args: &ServeArgs) -> io::Result<()> {
    let certificate = args.tls_certificate.as_ref().map(std::path::absolute);
    let certificate = certificate.transpose()?;
    let certificate = certificate.map(|path| path.display().to_string());
    let named = args.host.first().filter(|_| certificate.is_some());
    let address = match named {
        Some(host) if host.contains(':') => host.clone(),
        Some(host) => format!("{host}:{}", address.port()),
        None => address.to_string(),
    };
    let pid = std::process::id();
    let text = json!({"address": address, "pid": pid, "certificate": certificate}).to_string();
    replace(&root.join(WHERE), text.as_bytes())
}

/// Replaces a file for its owner alone as a whole.
fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = path.with_extension(format!("{}.new", std::process::id()));
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(new, path)
}

/// Keeps this process, and what it starts, to the processors that the daemon has given the job; gives the GPUs that its tasks may use.
pub(crate) fn keep_to_share(folder: &Path) -> Result<Option<Gpus>, Failure> {
    let share = machine::Share::read(folder).map_err(|error| {
        let folder = folder.display();
        Failure::not_ready(format!(
            "what the job has of this machine, share.json in {folder}, cannot be read: {error}; submit the job again"
        ))
    })?;
    share.keep_to();
    Ok(share.gpus)
}
