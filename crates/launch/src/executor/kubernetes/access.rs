//! Where a cluster's API server is and who asks it: a kubeconfig file, a pod's service account, or an address alone.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value as Json;

/// What a pod is given of its cluster.
const IN_POD: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// How a cluster is reached. Its token and key are never printed.
#[derive(Default, Clone, PartialEq, Eq)]
pub(super) struct Access {
    /// The address, without a slash at its end.
    pub(super) server: String,
    /// The namespace that the file names.
    pub(super) namespace: Option<String>,
    /// A bearer token.
    pub(super) token: Option<String>,
    /// The certificates that the server's is signed by, as PEM.
    pub(super) authority: Option<Vec<u8>>,
    /// The client's own certificate and key, as PEM.
    pub(super) client: Option<(Vec<u8>, Vec<u8>)>,
    /// Whether the server's certificate is not looked at.
    pub(super) insecure: bool,
}

impl Access {
    /// The cluster of an address, or of a kubeconfig file that KUBECONFIG, `~/.kube/config` or this pod's service account stands for.
    ///
    /// # Errors
    /// Nothing says where a cluster is, or what says it cannot be read.
    pub(super) fn find(
        server: Option<&str>,
        variables: &BTreeMap<String, String>,
    ) -> Result<Self, String> {
        let file = kubeconfig(variables);
        match (server, &file) {
            (Some(server), Some(file)) => {
                // The file may have what this server asks for.
                let known = Self::of_file(file).ok().filter(|known| known.server == trimmed(server));
                Ok(known.unwrap_or_else(|| Self::of_address(server)))
            }
            (Some(server), None) => Ok(Self::of_address(server)),
            (None, Some(file)) => Self::of_file(file),
            (None, None) => Self::of_pod(Path::new(IN_POD)).ok_or_else(|| {
                "no cluster of Kubernetes is known; set KUBECONFIG, write ~/.kube/config, or name phalanx.kubernetes.server, such as the address of `kubectl proxy`"
                    .to_owned()
            }),
        }
    }

    fn of_address(server: &str) -> Self {
        Self {
            server: trimmed(server).to_owned(),
            ..Self::default()
        }
    }

    fn of_pod(folder: &Path) -> Option<Self> {
        let host = std::env::var("KUBERNETES_SERVICE_HOST").ok()?;
        let port = std::env::var("KUBERNETES_SERVICE_PORT").unwrap_or_else(|_| "443".to_owned());
        let host = if host.contains(':') {
            format!("[{host}]")
        } else {
            host
        };
        let token = fs::read_to_string(folder.join("token")).ok()?;
        Some(Self {
            server: format!("https://{host}:{port}"),
            namespace: fs::read_to_string(folder.join("namespace")).ok(),
            token: Some(token.trim().to_owned()),
            authority: fs::read(folder.join("ca.crt")).ok(),
            ..Self::default()
        })
    }

    /// The current context of a kubeconfig file.
    pub(super) fn of_file(path: &Path) -> Result<Self, String> {
        let wrong = |what: String| format!("{}: {what}", path.display());
        let text = fs::read(path).map_err(|error| wrong(format!("{error}; correct KUBECONFIG")))?;
        let folder = path.parent().unwrap_or(Path::new("."));
        Self::of_text(&text, folder).map_err(wrong)
    }

    /// The current context of the text of a kubeconfig file, whose paths start at a folder.
    pub(super) fn of_text(text: &[u8], folder: &Path) -> Result<Self, String> {
        let (root, _) = phalanx_yaml::parse(text).map_err(|problem| problem.message)?;
        let root = root.to_json().unwrap_or_default();
        let current = root["current-context"].as_str().unwrap_or_default();
        if current.is_empty() {
            return Err(
                "it has no current-context; choose one with `kubectl config use-context`"
                    .to_owned(),
            );
        }
        let context = &named(&root, "contexts", current)?["context"];
        let of = |name: &str| context[name].as_str().unwrap_or_default();
        let cluster = &named(&root, "clusters", of("cluster"))?["cluster"];
        let server = cluster["server"].as_str().unwrap_or_default();
        let mut access = Self {
            namespace: context["namespace"].as_str().map(str::to_owned),
            authority: content(cluster, "certificate-authority", folder)?,
            insecure: cluster["insecure-skip-tls-verify"] == true,
            ..Self::of_address(server)
        };
        if !of("user").is_empty() {
            access.identify(&named(&root, "users", of("user"))?["user"], folder)?;
        }
        Ok(access)
    }

    /// Takes the user's token and certificate.
    fn identify(&mut self, user: &Json, folder: &Path) -> Result<(), String> {
        self.token = user["token"].as_str().map(str::to_owned);
        if let Some(file) = user["tokenFile"].as_str() {
            let token = read(&folder.join(file))?;
            self.token = Some(String::from_utf8_lossy(&token).trim().to_owned());
        }
        let certificate = content(user, "client-certificate", folder)?;
        self.client = certificate.zip(content(user, "client-key", folder)?);
        if user["exec"].is_object() {
            let status = ask_plugin(&user["exec"], folder)?;
            let text = |name: &str| status[name].as_str().map(str::to_owned);
            self.token = text("token").or(self.token.take());
            let pair = text("clientCertificateData").zip(text("clientKeyData"));
            let pair = pair.map(|(certificate, key)| (certificate.into_bytes(), key.into_bytes()));
            self.client = pair.or(self.client.take());
        }
        Ok(())
    }
}

fn trimmed(server: &str) -> &str {
    server.trim_end_matches('/')
}

/// The kubeconfig file, if there is one. Of a list in KUBECONFIG it is the first.
fn kubeconfig(variables: &BTreeMap<String, String>) -> Option<PathBuf> {
    if let Some(list) = variables.get("KUBECONFIG").filter(|list| !list.is_empty()) {
        return std::env::split_paths(list).next();
    }
    let file = Path::new(variables.get("HOME")?).join(".kube/config");
    file.is_file().then_some(file)
}

/// The entry of a list that has a name.
fn named<'a>(root: &'a Json, list: &str, name: &str) -> Result<&'a Json, String> {
    let mut entries = root[list].as_array().into_iter().flatten();
    let found = entries.find(|entry| entry["name"] == name);
    found.ok_or_else(|| format!("{list} has no entry {name:?}"))
}

/// What a field's file or its `-data` has.
fn content(of: &Json, field: &str, folder: &Path) -> Result<Option<Vec<u8>>, String> {
    if let Some(data) = of[format!("{field}-data")].as_str() {
        let bytes = STANDARD.decode(data);
        return bytes
            .map(Some)
            .map_err(|error| format!("{field}-data is no base64: {error}"));
    }
    of[field]
        .as_str()
        .map(|file| read(&folder.join(file)))
        .transpose()
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

/// What the program says that a cloud has for its tokens.
fn ask_plugin(exec: &Json, folder: &Path) -> Result<Json, String> {
    let name = exec["command"].as_str().unwrap_or_default();
    // As kubectl does: a path with a slash starts at the file's folder.
    let program = if name.contains('/') {
        folder.join(name)
    } else {
        PathBuf::from(name)
    };
    let mut command = Command::new(program);
    let args = exec["args"].as_array().into_iter().flatten();
    command.args(args.filter_map(Json::as_str));
    for variable in exec["env"].as_array().into_iter().flatten() {
        let text = |field: &str| variable[field].as_str().unwrap_or_default();
        command.env(text("name"), text("value"));
    }
    let info = serde_json::json!({"apiVersion": exec["apiVersion"], "kind": "ExecCredential", "spec": {"interactive": false}});
    command.env("KUBERNETES_EXEC_INFO", info.to_string());
    let output = command
        .output()
        .map_err(|error| format!("cannot start {name}, which the user's `exec` names: {error}"))?;
    let answer: Json = serde_json::from_slice(&output.stdout).unwrap_or_default();
    if !output.status.success() || !answer["status"].is_object() {
        // What it wrote to standard output may be a token.
        let error = String::from_utf8_lossy(&output.stderr);
        return Err(format!(
            "{name}, which the user's `exec` names, gives no credential: {}",
            error.trim()
        ));
    }
    Ok(answer["status"].clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    const FILE: &str = "apiVersion: v1
kind: Config
current-context: here
contexts:
  - {name: other, context: {cluster: b, user: nobody}}
  - {name: here, context: {cluster: a, user: me, namespace: train}}
clusters:
  - {name: a, cluster: {server: 'https://10.0.0.1:6443/', certificate-authority: ca.pem}}
  - {name: b, cluster: {server: 'http://b', insecure-skip-tls-verify: true}}
users:
  - {name: me, user: {client-certificate-data: Y2VydA==, client-key-data: a2V5, tokenFile: token}}
  - {name: nobody, user: {}}
";

    #[test]
    fn the_current_context_counts() {
        let scratch = Scratch::new("kubeconfig");
        let path = scratch.0.join("config");
        fs::write(&path, FILE).unwrap();
        fs::write(scratch.0.join("ca.pem"), "authority").unwrap();
        fs::write(scratch.0.join("token"), "abc\n").unwrap();
        let access = Access::of_file(&path).unwrap();
        assert_eq!(access.server, "https://10.0.0.1:6443");
        assert_eq!(access.namespace.as_deref(), Some("train"));
        assert_eq!(access.token.as_deref(), Some("abc"));
        assert_eq!(access.authority.as_deref(), Some(&b"authority"[..]));
        assert_eq!(access.client, Some((b"cert".to_vec(), b"key".to_vec())));
        assert!(!access.insecure);
        let other = FILE.replace("current-context: here", "current-context: other");
        let access = Access::of_text(other.as_bytes(), &scratch.0).unwrap();
        assert_eq!(
            (access.server.as_str(), access.insecure),
            ("http://b", true)
        );
        let missing = FILE.replace("current-context: here", "current-context: nowhere");
        let error = Access::of_text(missing.as_bytes(), &scratch.0)
            .err()
            .unwrap();
        assert_eq!(error, "contexts has no entry \"nowhere\"");
    }

    #[test]
    fn a_plugin_gives_the_token() {
        let scratch = Scratch::new("plugin");
        let script = "printf '{\"kind\": \"ExecCredential\", \"status\": {\"token\": \"of %s %s\"}}' $1 $CLOUD";
        let user = format!(
            "{{exec: {{apiVersion: v1, command: sh, args: [-c, {script:?}, sh, me], env: [{{name: CLOUD, value: sky}}]}}}}"
        );
        let text = FILE.replace(
            "{name: nobody, user: {}}",
            &format!("{{name: nobody, user: {user}}}"),
        );
        let text = text.replace("current-context: here", "current-context: other");
        let access = Access::of_text(text.as_bytes(), &scratch.0).unwrap();
        assert_eq!(access.token.as_deref(), Some("of me sky"));
        let failing = text.replace("command: sh,", "command: 'false',");
        let error = Access::of_text(failing.as_bytes(), &scratch.0)
            .err()
            .unwrap();
        assert!(error.contains("gives no credential"), "{error}");
    }
}
