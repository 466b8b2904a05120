//! Who may ask: every route and every method needs the token, but for `/healthz`; and the Host must be one of ours, so that a page
//! whose name was made to point here reaches nothing, and the Origin, where a browser tells it, too.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use phalanx_launch::store::now;
use subtle::ConstantTimeEq;

use super::Shared;
use super::error::ApiError;

/// The only route without a token.
pub(super) const HEALTH: &str = "/healthz";
/// Browsers give a cookie to every port of a machine, so to another program that has this one's port later, too: each daemon has a cookie
/// of its own, which says nothing of the token.
pub(super) struct Cookie {
    name: String,
    value: String,
}

impl Cookie {
    /// Of a daemon at this port.
    pub(super) fn draw(port: u16) -> io::Result<Self> {
        let value = phalanx_proof::draw_hex::<32>()?;
        let name = format!("phalanx_{port}");
        Ok(Self { name, value })
    }
}

/// What of each page's own may run and be fetched: nothing from elsewhere, and no script but the files of this program.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
    form-action 'none'; base-uri 'none'; frame-ancestors 'none'";

/// Names under which a daemon that listens at an address is reached. At the port of its scheme clients and browsers leave the port out.
pub(super) fn hosts(address: SocketAddr, more: &[String], is_secure: bool) -> Vec<String> {
    let port = address.port();
    let mut hosts = vec![address.to_string()];
    if address.ip().is_loopback() {
        hosts.extend(["127.0.0.1", "localhost", "[::1]"].map(|name| format!("{name}:{port}")));
    }
    hosts.extend(more.iter().map(|name| match name.contains(':') {
        true => name.clone(),
        false => format!("{name}:{port}"),
    }));
    let default = if is_secure { ":443" } else { ":80" };
    let bare = hosts.iter().filter_map(|host| host.strip_suffix(default));
    let bare: Vec<String> = bare.map(str::to_owned).collect();
    hosts.extend(bare);
    hosts
}

/// Counts a request while it is answered.
struct Answering(Arc<Shared>);

impl Answering {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.answering.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(shared))
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.asked.store(now(), Ordering::Relaxed);
        self.0.answering.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Stands before every route, also those that there are not.
pub(super) async fn check(
    State(shared): State<Arc<Shared>>,
    request: Request,
    next: Next,
) -> Response {
    let answering = Answering::new(&shared);
    let mut response = match admit(&shared, &request) {
        Admitted::Yes => next.run(request).await,
        Admitted::WithCookie => to_cookie(&shared),
        Admitted::No(error) => error.into_response(),
    };
    let refused = response.status().is_client_error();
    if refused && !is_json(response.headers()) {
        response = ApiError::of(response).await.into_response();
    }
    drop(answering);
    let headers = response.headers_mut();
    if refused {
        // What else was sent is not read, so the connection cannot be used again: the client hears of it.
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

enum Admitted {
    Yes,
    /// A browser that comes with the token in the address gets a cookie, and an address without it.
    WithCookie,
    No(ApiError),
}

fn admit(shared: &Shared, request: &Request) -> Admitted {
    let headers = request.headers();
    let host = text(headers, header::HOST).or_else(|| Some(request.uri().authority()?.as_str()));
    if !host.is_some_and(|host| {
        shared
            .hosts
            .iter()
            .any(|known| known.eq_ignore_ascii_case(host))
    }) {
        return Admitted::No(ApiError::forbidden(
            "the Host of the request is none of this service's; use the address that `phalanx jobs dashboard` prints, or start it with --host",
        ));
    }
    if let Some(origin) = text(headers, header::ORIGIN)
        && !shared.hosts.iter().any(|host| {
            [format!("http://{host}"), format!("https://{host}")]
                .iter()
                .any(|own| own == origin)
        })
    {
        return Admitted::No(ApiError::forbidden(
            "requests of other pages are not answered",
        ));
    }
    if request.uri().path() == HEALTH && [Method::GET, Method::HEAD].contains(request.method()) {
        return Admitted::Yes;
    }
    let is = |given: &str, known: &str| bool::from(given.as_bytes().ct_eq(known.as_bytes()));
    let is_token = |given: &str| is(given, &shared.token);
    let Cookie { name, value } = &shared.cookie;
    let bearer =
        text(headers, header::AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
    if bearer.is_some_and(is_token) || cookie(headers, name).is_some_and(|given| is(given, value)) {
        return Admitted::Yes;
    }
    let given = query_token(request);
    if given.is_some_and(is_token) && request.uri().path() == "/" && request.method() == Method::GET
    {
        return Admitted::WithCookie;
    }
    Admitted::No(ApiError::unauthenticated(
        "the token is missing or wrong; `phalanx jobs dashboard` prints an address with it, programs send `Authorization: Bearer TOKEN`",
    ))
}

fn is_json(headers: &HeaderMap) -> bool {
    text(headers, header::CONTENT_TYPE).is_some_and(|kind| kind.starts_with("application/json"))
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

fn cookie<'a>(headers: &'a HeaderMap, wanted: &str) -> Option<&'a str> {
    let all = text(headers, header::COOKIE)?;
    let mut pairs = all
        .split(';')
        .filter_map(|pair| pair.trim().split_once('='));
    pairs
        .find(|(name, _)| *name == wanted)
        .map(|(_, value)| value)
}

fn query_token(request: &Request) -> Option<&str> {
    let mut pairs = request
        .uri()
        .query()?
        .split('&')
        .filter_map(|pair| pair.split_once('='));
    pairs
        .find(|(name, _)| *name == "token")
        .map(|(_, value)| value)
}

fn to_cookie(shared: &Shared) -> Response {
    let secure = if shared.is_secure { "; Secure" } else { "" };
    let Cookie { name, value } = &shared.cookie;
    let cookie = format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict{secure}");
    let headers = [
        (header::LOCATION, "/".to_owned()),
        (header::SET_COOKIE, cookie),
    ];
    (StatusCode::SEE_OTHER, headers).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_the_port_of_the_scheme_names_are_known_without_it_too() {
        let at = |port| SocketAddr::from(([10, 0, 0, 1], port));
        let more = ["jobs.example".to_owned(), "gate.example:443".to_owned()];
        let secure = hosts(at(443), &more, true);
        for host in [
            "10.0.0.1",
            "jobs.example",
            "gate.example",
            "jobs.example:443",
        ] {
            assert!(
                secure.iter().any(|known| known == host),
                "{host}: {secure:?}"
            );
        }
        for (port, is_secure) in [(443, false), (80, true), (8080, true), (8443, true)] {
            let hosts = hosts(at(port), &more[..1], is_secure);
            assert!(hosts.iter().all(|host| host.contains(':')), "{hosts:?}");
        }
        let plain = hosts(SocketAddr::from(([127, 0, 0, 1], 80)), &[], false);
        for host in ["127.0.0.1", "localhost", "[::1]", "localhost:80"] {
            assert!(plain.iter().any(|known| known == host), "{host}: {plain:?}");
        }
    }
}
