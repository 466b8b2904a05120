//! An etcd with TLS, with certificates of its clients and with users.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use phalanx_cluster::{ClusterError, Coordinator, JoinRequest};

use crate::server::{Etcd, field, memory_folder};
use crate::{PATIENT, SOON, go_on, join_with, leader, membership_with};

/// What must be changed first is said at once.
const AT_ONCE: Duration = Duration::from_secs(20);
const PASSWORD: &str = "correct horse \"battery\"";

/// Certificates in a folder, by names: NAME.pem and NAME.key.
struct Certificates(PathBuf);

impl Certificates {
    /// `ca` and a `stranger` that is one, too; `server`, `client`, `late`, which has expired, and `named`, which has a
    /// common name, signed by `ca`.
    fn new(name: &str) -> Option<Self> {
        let folder = memory_folder().join(format!(
            "phalanx-certificates-{name}-{}",
            std::process::id()
        ));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let all = Self(folder);
        for name in ["ca", "stranger"] {
            let new = format!("req -x509 -nodes -days 2 -out {name}.pem -subj /CN={name}");
            if !all.openssl(&format!("{new} {}", key(name))) {
                return None;
            }
        }
        std::fs::write(all.0.join("ca.cnf"), CA).unwrap();
        std::fs::write(all.0.join("index.txt"), "").unwrap();
        std::fs::write(all.0.join("serial"), "01\n").unwrap();
        let late = "20200102000000Z";
        for (name, subject, end) in [
            ("server", "O", END),
            ("client", "O", END),
            ("late", "O", late),
            ("named", "CN", END),
        ] {
            let request = format!("req -nodes -new -out {name}.csr -subj /{subject}={name}");
            assert!(all.openssl(&format!("{request} {}", key(name))));
            let sign = format!("ca -batch -notext -config ca.cnf -in {name}.csr -out {name}.pem");
            assert!(all.openssl(&format!("{sign} -startdate 20200101000000Z -enddate {end}")));
        }
        Some(all)
    }

    fn openssl(&self, words: &str) -> bool {
        let mut command = Command::new("openssl");
        let output = command.args(words.split(' ')).current_dir(&self.0).output();
        output.is_ok_and(|output| output.status.success())
    }

    fn path(&self, file: &str) -> String {
        self.0.join(file).to_str().unwrap().to_owned()
    }

    /// What an etcd with this certificate is started with.
    fn flags(&self, of: &str) -> Vec<String> {
        let [certificate, key] = [format!("{of}.pem"), format!("{of}.key")];
        let flags = [
            ("--cert-file", certificate),
            ("--key-file", key),
            ("--trusted-ca-file", "ca.pem".into()),
        ];
        let flags = flags.map(|(flag, file)| format!("{flag}={}", self.path(&file)));
        flags
            .into_iter()
            .chain(["--client-cert-auth".into()])
            .collect()
    }

    /// The variables by which a process shows the certificate `of`.
    fn variables(&self, authority: &str, of: Option<&str>) -> Vec<(&'static str, String)> {
        let mut all = vec![("PHALANX_ETCD_CA", self.path(&format!("{authority}.pem")))];
        if let Some(of) = of {
            all.push(("PHALANX_ETCD_CERTIFICATE", self.path(&format!("{of}.pem"))));
            all.push(("PHALANX_ETCD_KEY", self.path(&format!("{of}.key"))));
        }
        all
    }

    /// The variables of a user with a password.
    fn user(&self, name: &str, password: &str) -> Vec<(&'static str, String)> {
        let file = self.path(&format!("password-{}", password.len()));
        std::fs::write(&file, format!("{password}\n")).unwrap();
        vec![
            ("PHALANX_ETCD_USER", name.into()),
            ("PHALANX_ETCD_PASSWORD_FILE", file),
        ]
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const END: &str = "20990101000000Z";

fn key(name: &str) -> String {
    format!("-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -keyout {name}.key")
}

const CA: &str = "\
[ca]
default_ca = this
[this]
new_certs_dir = .
database = index.txt
serial = serial
private_key = ca.key
certificate = ca.pem
default_md = sha256
unique_subject = no
policy = any
x509_extensions = of_all
[any]
commonName = optional
organizationName = optional
[of_all]
basicConstraints = CA:FALSE
subjectAltName = IP:127.0.0.1
extendedKeyUsage = serverAuth,clientAuth
";

/// Enables users: root, `trainer`, who may use keys under /phalanx/, and `guest`, who may use none.
fn enable_users(etcd: &Etcd) {
    leader(std::slice::from_ref(etcd));
    let password = serde_json::json!(PASSWORD);
    for (path, body) in [
        ("user/add", r#"{"name": "root", "password": "root"}"#.to_owned()),
        ("role/add", r#"{"name": "root"}"#.into()),
        ("user/grant", r#"{"user": "root", "role": "root"}"#.into()),
        ("user/add", format!(r#"{{"name": "trainer", "password": {password}}}"#)),
        ("user/add", format!(r#"{{"name": "guest", "password": {password}}}"#)),
        ("role/add", r#"{"name": "train"}"#.into()),
        // From /phalanx/ to before /phalanx0.
        (
            "role/grant",
            r#"{"name": "train", "perm": {"permType": "READWRITE", "key": "L3BoYWxhbngv", "range_end": "L3BoYWxhbngw"}}"#.into(),
        ),
        ("user/grant", r#"{"user": "trainer", "role": "train"}"#.into()),
        ("enable", "{}".into()),
    ] {
        let answer = etcd.post(&format!("auth/{path}"), &body, None).unwrap();
        assert!(answer.contains(" 200 "), "{path}: {answer}");
    }
}

/// An etcd with users that takes nothing but TLS and certificates of its clients, and those; none where a program is not installed.
fn secured(name: &str) -> Option<(Etcd, Certificates)> {
    let mut etcd = Etcd::start(name)?;
    let Some(certificates) = Certificates::new(name) else {
        eprintln!("skipped: no openssl, or one that makes no certificates");
        return None;
    };
    enable_users(&etcd);
    etcd.scheme = "https";
    etcd.flags = certificates.flags("server");
    etcd.restart();
    Some((etcd, certificates))
}

fn join(
    url: &str,
    job: &str,
    worker: usize,
    variables: &[(&str, String)],
) -> Result<Coordinator, ClusterError> {
    join_with(
        &membership_with(url, job, 2, worker, variables),
        "s",
        PATIENT,
    )
}

/// What two workers do that meet.
fn on_two(
    url: &str,
    job: &str,
    variables: &[(&str, String)],
    work: impl Fn(usize, Coordinator) + Sync,
) {
    thread::scope(|scope| {
        for worker in 0..2 {
            let work = &work;
            scope.spawn(move || work(worker, join(url, job, worker, variables).unwrap()));
        }
    });
}

#[test]
fn workers_meet_by_tls_with_a_certificate_and_a_password_and_outlive_their_tokens() {
    let Some((etcd, certificates)) = secured("secured") else {
        return;
    };
    let url = etcd.url();
    let mut variables = certificates.variables("ca", Some("client"));
    variables.extend(certificates.user("trainer", PASSWORD));
    let etcd = std::sync::Mutex::new(etcd);
    on_two(&url, "secured", &variables, |worker, coordinator| {
        let all = coordinator.exchange("before", vec![worker as u8], SOON);
        assert_eq!(all.unwrap(), [[0], [1]]);
        if worker == 0 {
            // What gave the tokens is gone, and they with it.
            etcd.lock().unwrap().restart();
        }
        go_on(worker, &coordinator);
    });
}

#[test]
fn a_certificate_that_is_renewed_during_a_training_is_read_again() {
    let Some((mut etcd, all)) = secured("renewed") else {
        return;
    };
    let mine = "req -x509 -nodes -days 2 -out mine.pem -subj /O=mine";
    assert!(all.openssl(&format!("{mine} {}", key("mine"))));
    let authorities = std::fs::read(all.path("ca.pem")).unwrap();
    // Until etcd is started again it knows this one, too.
    let own = std::fs::read(all.path("mine.pem")).unwrap();
    std::fs::write(all.path("ca.pem"), [&*authorities, &own].concat()).unwrap();
    etcd.restart();
    let (url, variables) = (etcd.url(), shown(&all, Some("mine"), KNOWN));
    let etcd = std::sync::Mutex::new(etcd);
    on_two(&url, "renewed", &variables, |worker, coordinator| {
        let together = |name| coordinator.exchange(name, vec![worker as u8], SOON);
        assert_eq!(together("before").unwrap(), [[0], [1]]);
        if worker == 0 {
            let mut etcd = etcd.lock().unwrap();
            etcd.kill();
            std::fs::write(all.path("ca.pem"), &authorities).unwrap();
            for end in ["pem", "key"] {
                let [from, to] = ["client", "mine"].map(|name| all.path(&format!("{name}.{end}")));
                std::fs::copy(from, to).unwrap();
            }
            assert!(etcd.start_again());
        }
        assert_eq!(together("after").unwrap(), [[0], [1]]);
        coordinator.leave(SOON).unwrap();
    });
}

/// The error of a worker that is refused, which comes at once.
fn refusal(url: &str, variables: &[(&str, String)]) -> String {
    let start = Instant::now();
    let error = join(url, "refused", 0, variables).err().unwrap();
    assert!(start.elapsed() < AT_ONCE, "{:?}: {error}", start.elapsed());
    assert!(matches!(error, ClusterError::User(_)), "{error:?}");
    error.to_string()
}

/// Waits until a worker that waits in vain for an etcd, which may be just dying or beginning, says this of it.
fn until_late(url: &str, variables: &[(&str, String)], said: &str) {
    let until = Instant::now() + SOON;
    loop {
        let membership = membership_with(url, "late", 2, 0, variables);
        let data = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
        let request = JoinRequest::new("1", data).deadline(Duration::from_secs(1));
        let joined = Coordinator::join(&membership, request);
        let error = joined.err().unwrap().to_string();
        if error.contains(said) {
            return;
        }
        assert!(Instant::now() < until, "no {said:?} in {error}");
    }
}

/// Waits until etcd listens: one that does not is waited for, and here nobody is.
fn until_it_listens(etcd: &Etcd) {
    let until = Instant::now() + SOON;
    while std::net::TcpStream::connect(("127.0.0.1", etcd.client_port())).is_err() {
        assert!(Instant::now() < until, "etcd does not listen");
        thread::sleep(Duration::from_millis(20));
    }
}

type Variables = Vec<(&'static str, String)>;

/// What a process shows whose certificate is `of`, as this user.
fn shown(all: &Certificates, of: Option<&str>, user: Option<(&str, &str)>) -> Variables {
    let mut variables = all.variables("ca", of);
    let user = user.into_iter();
    variables.extend(user.flat_map(|(name, password)| all.user(name, password)));
    variables
}

const KNOWN: Option<(&str, &str)> = Some(("trainer", PASSWORD));

/// The right variables, but for the file of one.
fn with_file(all: &Certificates, variable: &str, file: &str) -> Variables {
    let mut variables = shown(all, Some("client"), KNOWN);
    let one = variables.iter_mut().find(|(name, _)| *name == variable);
    one.unwrap().1 = all.path(file);
    variables
}

/// Each is refused, with an error that has these parts and no password.
fn check_refusals<const N: usize>(url: &str, cases: [(Variables, [&str; 2]); N]) {
    for (variables, parts) in cases {
        let error = refusal(url, &variables);
        let has_all = parts.iter().all(|part| error.contains(part));
        assert!(has_all, "no {parts:?} in {error}");
        assert!(
            !error.contains(PASSWORD) && !error.contains("wrong\""),
            "{error}"
        );
    }
}

#[test]
fn each_refusal_of_a_certificate_says_at_once_what_to_change() {
    let Some((etcd, all)) = secured("refusals") else {
        return;
    };
    until_it_listens(&etcd);
    let of = |name| shown(&all, Some(name), KNOWN);
    let stranger = with_file(&all, "PHALANX_ETCD_CA", "stranger.pem");
    let none = shown(&all, None, KNOWN);
    let other_key = with_file(&all, "PHALANX_ETCD_KEY", "server.key");
    let no_file = with_file(&all, "PHALANX_ETCD_CA", "none.pem");
    let no_certificate = with_file(&all, "PHALANX_ETCD_CA", "serial");
    let cases = [
        (stranger, ["no authority in", "PHALANX_ETCD_CA"]),
        (
            none,
            [
                "wants a certificate of its clients",
                "PHALANX_ETCD_CERTIFICATE",
            ],
        ),
        (
            of("late"),
            ["refuses the certificate of this process", "late.pem"],
        ),
        (
            of("named"),
            [
                "certificate that has a common name",
                "PHALANX_ETCD_CERTIFICATE",
            ],
        ),
        (
            other_key,
            [
                "PHALANX_ETCD_KEY must name the key",
                "PHALANX_ETCD_CERTIFICATE",
            ],
        ),
        (
            no_file,
            ["none.pem, which PHALANX_ETCD_CA names", "No such file"],
        ),
        (
            no_certificate,
            ["which PHALANX_ETCD_CA names", "it has no certificate"],
        ),
    ];
    check_refusals(&etcd.url(), cases);
}

#[test]
fn each_refusal_of_a_user_says_at_once_what_to_change() {
    let Some((etcd, all)) = secured("users") else {
        return;
    };
    until_it_listens(&etcd);
    let of = |user| shown(&all, Some("client"), user);
    let no_password = with_file(&all, "PHALANX_ETCD_PASSWORD_FILE", "none");
    let (wrong, guest) = (
        of(Some(("trainer", "wrong"))),
        of(Some(("guest", PASSWORD))),
    );
    let grant = "grant-permission ROLE --prefix=true readwrite /phalanx/";
    let cases = [
        (of(None), ["it wants a user", "PHALANX_ETCD_USER"]),
        (
            wrong,
            [
                "the user \"trainer\" with this password",
                "PHALANX_ETCD_PASSWORD_FILE",
            ],
        ),
        (guest, ["refuses the user \"guest\"", grant]),
        (
            no_password,
            ["which PHALANX_ETCD_PASSWORD_FILE names", "No such file"],
        ),
    ];
    check_refusals(&etcd.url(), cases);
}

#[test]
fn a_server_with_another_certificate_or_without_tls_is_told_from_one_that_is_away() {
    let Some((mut etcd, all)) = secured("schemes") else {
        return;
    };
    until_it_listens(&etcd);
    let url = etcd.url();
    let right = shown(&all, Some("client"), KNOWN);
    let without = url.replace("etcds", "etcd");
    until_late(&without, &[], "where it takes TLS, write etcds://");
    etcd.flags = all.flags("late");
    etcd.restart();
    until_it_listens(&etcd);
    check_refusals(
        &url,
        [(right.clone(), ["its certificate has expired", "renew it"])],
    );
    (etcd.scheme, etcd.flags) = ("http", Vec::new());
    etcd.restart();
    until_it_listens(&etcd);
    until_late(&url, &right, "where it takes no TLS, write etcd://");
}

#[test]
fn a_role_that_is_taken_away_ends_the_training_with_the_reason() {
    let (Some(etcd), Some(certificates)) = (Etcd::start("revoked"), Certificates::new("revoked"))
    else {
        return;
    };
    enable_users(&etcd);
    let variables = certificates.user("trainer", PASSWORD);
    on_two(&etcd.url(), "revoked", &variables, |worker, coordinator| {
        coordinator.barrier("before", SOON).unwrap();
        if worker == 0 {
            let root = r#"{"name": "root", "password": "root"}"#;
            let token = etcd.post("auth/authenticate", root, None).unwrap();
            let token = field(&token, "token").unwrap();
            let revoke = r#"{"name": "trainer", "role": "train"}"#;
            let answer = etcd.post("auth/user/revoke", revoke, Some(&token)).unwrap();
            assert!(answer.contains(" 200 "), "{answer}");
        }
        let start = Instant::now();
        let error = coordinator.barrier("after", SOON).unwrap_err().to_string();
        assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
        assert!(error.contains("cannot use etcd any more"), "{error}");
        assert!(error.contains("permission denied"), "{error}");
    });
}

/// The password of a process is in no variable and no argument, and not in what it shows of itself.
#[test]
fn what_is_shown_of_a_process_has_no_password() {
    let certificates =
        Certificates(memory_folder().join(format!("phalanx-shown-{}", std::process::id())));
    std::fs::create_dir_all(&certificates.0).unwrap();
    let variables = certificates.user("trainer", PASSWORD);
    let shown = format!(
        "{:?}",
        membership_with("etcd://127.0.0.1:1", "shown", 2, 0, &variables)
    );
    assert!(
        shown.contains("trainer") && !shown.contains(PASSWORD),
        "{shown}"
    );
    assert!(Path::new(&variables[1].1).is_file());
}
