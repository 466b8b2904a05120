//! Members of a real etcd.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use phalanx_cluster::launch::ReservedPorts;

/// Where a file is safe at once: etcd waits for its disk, which on a busy machine takes longer than a lease.
pub(crate) fn memory_folder() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() {
        memory
    } else {
        std::env::temp_dir()
    }
}

/// A member of an etcd, with a folder of its own.
pub(crate) struct Etcd {
    folder: PathBuf,
    name: String,
    /// Of clients and of the other members.
    ports: ReservedPorts,
    /// Names and addresses of all members.
    members: String,
    /// By which its clients connect.
    pub(crate) scheme: &'static str,
    pub(crate) flags: Vec<String>,
    pub(crate) process: Option<Child>,
}

impl Etcd {
    /// The only member; none where etcd is not installed.
    pub(crate) fn start(name: &str) -> Option<Self> {
        Self::start_members(name, 1, &[])?.pop()
    }

    /// The members of one etcd; none where it is not installed.
    pub(crate) fn start_members(name: &str, count: usize, flags: &[&str]) -> Option<Vec<Self>> {
        let ports = (0..count).map(|_| ReservedPorts::new(2, None).unwrap());
        let ports: Vec<ReservedPorts> = ports.collect();
        let of_peer = |(index, ports): (usize, &ReservedPorts)| {
            format!("e{index}=http://127.0.0.1:{}", ports.of_workers()[1])
        };
        let members: Vec<String> = ports.iter().enumerate().map(of_peer).collect();
        let mut all = Vec::new();
        for (index, ports) in ports.into_iter().enumerate() {
            let folder = format!("phalanx-etcd-{name}-{index}-{}", std::process::id());
            let folder = memory_folder().join(folder);
            let _ = std::fs::remove_dir_all(&folder);
            let mut member = Self {
                folder,
                name: format!("e{index}"),
                ports,
                members: members.join(","),
                scheme: "http",
                flags: flags.iter().map(|&flag| flag.into()).collect(),
                process: None,
            };
            if !member.start_again() {
                return None;
            }
            all.push(member);
        }
        Some(all)
    }

    pub(crate) fn start_again(&mut self) -> bool {
        let at = |of: usize| format!("127.0.0.1:{}", self.ports.of_workers()[of]);
        let client = format!("{}://{}", self.scheme, at(0));
        let peer = format!("http://{}", at(1));
        let mut command = Command::new("etcd");
        command.args(["--name", &self.name]);
        command.arg("--data-dir").arg(&self.folder);
        for flag in ["--listen-client-urls", "--advertise-client-urls"] {
            command.args([flag, &client]);
        }
        for flag in ["--listen-peer-urls", "--initial-advertise-peer-urls"] {
            command.args([flag, &peer]);
        }
        command.args(["--initial-cluster", &self.members]);
        command.args(&self.flags);
        match command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
            Ok(child) => self.process = Some(child),
            Err(_) => {
                let _ = writeln!(
                    std::io::stderr(),
                    "skipped: no etcd; it is in Debian's package etcd-server"
                );
                return false;
            }
        }
        true
    }

    pub(crate) fn client_port(&self) -> u16 {
        self.ports.of_workers()[0]
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.process.as_ref().unwrap().id().to_string();
        let done = Command::new("kill").args([name, &id]).status();
        assert!(done.unwrap().success());
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.process.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Ends it and starts it again: what it had in memory alone is gone.
    pub(crate) fn restart(&mut self) {
        self.kill();
        assert!(self.start_again());
    }

    /// Whether this member leads, by its own account; none while nobody does or it does not answer.
    pub(crate) fn leads(&self) -> Option<bool> {
        let answer = self.post("maintenance/status", "{}", None)?;
        let leader = field(&answer, "leader").filter(|leader| leader != "0")?;
        Some(leader == field(&answer, "member_id")?)
    }

    /// What it answers by plain HTTP, status and headers with it; none if it does not.
    pub(crate) fn post(&self, path: &str, body: &str, token: Option<&str>) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.client_port())).ok()?;
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .ok()?;
        let token = token.map_or_else(String::new, |token| format!("Authorization: {token}\r\n"));
        let length = body.len();
        let request = format!(
            "POST /v3/{path} HTTP/1.0\r\nHost: etcd\r\n{token}Content-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    pub(crate) fn url(&self) -> String {
        let scheme = if self.scheme == "https" {
            "etcds"
        } else {
            "etcd"
        };
        format!("{scheme}://127.0.0.1:{}", self.client_port())
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A field of an answer in JSON whose value is text.
pub(crate) fn field(answer: &str, name: &str) -> Option<String> {
    let (_, rest) = answer.split_once(&format!("\"{name}\":\""))?;
    Some(rest.split_once('"')?.0.to_owned())
}
