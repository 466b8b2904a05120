//! The dashboard in a browser: what tasks write is shown and never run. Only where PHALANX_TEST_BROWSER names a Chromium, or chromium-headless-shell is in PATH.

#![cfg(target_os = "linux")]

mod browser_pipe;
mod service;

use std::fs;
use std::net::TcpListener;

use browser_pipe::Browser;
use serde_json::{Value as Json, json};
use service::Service;

/// Markup that runs a script where it is taken for markup; `RUN` stands for the script.
const SHAPES: [&str; 25] = [
    "<script>RUN</script>",
    "</pre><script>RUN</script>",
    "</script><script>RUN</script>",
    "<ScRiPt>RUN</sCrIpT>",
    "<script src=URL></script>",
    "<img src=x onerror=RUN>",
    "<img src=x onerror='RUN'>",
    "\"><img src=x onerror=RUN>",
    "'><img src=x onerror=RUN>",
    "<img src=URL>",
    "<svg onload=RUN>",
    "<svg><script>RUN</script></svg>",
    "</svg><svg onload=RUN>",
    "<body onload=RUN>",
    "<iframe src=javascript:RUN></iframe>",
    "<iframe srcdoc='<script>RUN</script>'></iframe>",
    "<a href=javascript:RUN autofocus onfocus=RUN>x</a>",
    "<input autofocus onfocus=RUN>",
    "<details open ontoggle=RUN>",
    "<video><source onerror=RUN></video>",
    "<object data=javascript:RUN></object>",
    "<link rel=stylesheet href=URL>",
    "<meta http-equiv=refresh content=0;url=URL>",
    "<style>@import 'URL';</style>",
    "<math><mtext><table><mglyph><style><img src=x onerror=RUN>",
];

/// 50 strings: each shape with a script that leaves a mark, and with one that calls an address.
fn strings(address: &str) -> Vec<String> {
    let call = format!("fetch('{address}')");
    let with = |run: &str, page: &str| {
        let (run, url) = (run.to_owned(), format!("{address}{page}"));
        SHAPES.map(|shape| shape.replace("RUN", &run).replace("URL", &url))
    };
    [with("window.ran=1", "one"), with(&call, "two")].concat()
}

#[test]
fn what_tasks_write_is_shown_and_never_run() {
    let service = Service::new("browser");
    let Some(mut browser) = Browser::start(&service.folder.join("browser")) else {
        phalanx_testkit::skip(
            "install chromium-headless-shell, or name a Chromium in PHALANX_TEST_BROWSER",
        );
        return;
    };
    // The mark is seen where a script does run.
    browser.open("data:text/html,<script>window.ran=1</script>");
    browser.until("window.ran === 1");

    let canary = TcpListener::bind("127.0.0.1:0").unwrap();
    canary.set_nonblocking(true).unwrap();
    let strings = strings(&format!("http://{}/", canary.local_addr().unwrap()));
    assert_eq!(strings.len(), 50);
    fs::write(service.folder.join("said"), strings.join("\n") + "\n").unwrap();
    let metrics: Json = strings
        .iter()
        .map(|text| (text.clone(), json!(0.5)))
        .collect::<serde_json::Map<_, _>>()
        .into();
    fs::write(
        service.folder.join("history.jsonl"),
        format!("{metrics}\n{metrics}\n"),
    )
    .unwrap();
    // The last 20 lines stand as those of the first failure, too.
    service.script(
        "demo",
        &[],
        "mkdir -p runs/demo; cp history.jsonl runs/demo; cat said; exit 1",
    );
    service.end("demo");

    let dashboard = service.ok(&["dashboard"]);
    browser.fetched.clear();
    browser.open(&format!("{}#demo", dashboard.trim()));
    browser.until("document.querySelectorAll('#curves figure').length >= 50 && document.getElementById('log').textContent.split('\\n').length >= 50 && !document.getElementById('failed').hidden");
    let shown =
        browser.value("document.body.innerText + document.getElementById('log').textContent");
    let shown = shown.as_str().unwrap();
    for text in &strings {
        assert!(shown.contains(text.as_str()), "{text} is not shown");
    }
    check_nothing_ran(&mut browser);
    assert!(canary.accept().is_err(), "a string has called an address");
}

#[test]
fn the_speed_of_a_training_is_drawn_apart_from_its_curves() {
    let service = Service::new("speed");
    let Some(mut browser) = Browser::start(&service.folder.join("browser")) else {
        phalanx_testkit::skip(
            "install chromium-headless-shell, or name a Chromium in PHALANX_TEST_BROWSER",
        );
        return;
    };
    // A step takes 100, 200 and 50 ms.
    let line = |(index, rate): (usize, f64)| {
        let logs = json!({"loss": 1.0, "val_loss": 1.5});
        let throughput = json!({"steps_per_second": rate, "examples_per_second": 32.0 * rate});
        let line = json!({"epoch": index + 1, "steps": 5, "throughput": throughput, "logs": logs});
        format!("{line}\n")
    };
    let rates = [10.0, 5.0, 20.0];
    let history: String = rates.into_iter().enumerate().map(line).collect();
    fs::write(service.folder.join("history.jsonl"), history).unwrap();
    let script = "mkdir -p runs/demo; cp history.jsonl runs/demo";
    service.script("demo", &[], script);
    service.end("demo");
    browser.open(&format!("{}#demo", service.ok(&["dashboard"]).trim()));
    browser.until("document.querySelectorAll('#speed figure').length === 2");
    let captions = "Array.from(document.querySelectorAll('#speed figcaption, #curves figcaption'), (one) => one.textContent).join(';')";
    let expected =
        "loss — train — validation;examples per second — train;time of a step, ms — train";
    assert_eq!(browser.value(captions), expected);
    // From 0 at the bottom of the chart, 172, to the most, 200, at its top, 22.
    let points = "document.querySelectorAll('#speed polyline')[1].getAttribute('points')";
    assert_eq!(browser.value(points), "52,97 242,22 432,134.5");

    // Within the first epoch, over steps 10, 30 and 50.
    let line = |(step, rate): (u32, f64)| {
        let line =
            json!({"step": step, "steps_per_second": rate, "examples_per_second": 32.0 * rate});
        format!("{line}\n")
    };
    let speed: String = [10, 30, 50].into_iter().zip(rates).map(line).collect();
    fs::write(service.folder.join("speed.jsonl"), speed).unwrap();
    let script = "mkdir -p runs/within; cp speed.jsonl runs/within";
    service.script("within", &[], script);
    service.end("within");
    browser.open(&format!("{}#within", service.ok(&["dashboard"]).trim()));
    browser.until("document.querySelectorAll('#speed figure').length === 2");
    assert_eq!(browser.value(points), "52,97 242,22 432,134.5");
    let ends = "Array.from(document.querySelectorAll('#speed svg')[1].querySelectorAll('text'), (one) => one.textContent).slice(-2).join(' to ')";
    assert_eq!(browser.value(ends), "10 to 50");
}

#[test]
fn the_trials_of_a_search_are_read_in_a_narrow_window() {
    let service = Service::new("narrow");
    let Some(mut browser) = Browser::start(&service.folder.join("browser")) else {
        phalanx_testkit::skip(
            "install chromium-headless-shell, or name a Chromium in PHALANX_TEST_BROWSER",
        );
        return;
    };
    let param = |name: &str| {
        format!("    - {{parameterName: {name}, type: DISCRETE, discreteValues: [0.0001]}}\n")
    };
    let params = ["rate", "units_of_the_first_layer", "dropout", "batch_size"].map(param);
    let config = format!(
        "trainingInput:\n  hyperparameters:\n    hyperparameterMetricTag: val_accuracy\n    params:\n{}",
        params.concat()
    );
    fs::write(service.folder.join("config.yaml"), config).unwrap();
    let script = "for step in 1 2; do echo \"{\\\"global_step\\\": \\\"$step\\\", \\\"val_accuracy\\\": \\\"0.5\\\"}\"; done >> $CLOUD_ML_HP_METRIC_FILE";
    service.script("demo", &["--config", "config.yaml"], script);
    service.end("demo");
    let size = json!({"width": 360, "height": 800, "deviceScaleFactor": 1, "mobile": false});
    browser.ask("Emulation.setDeviceMetricsOverride", &size);
    browser.open(&format!("{}#demo", service.ok(&["dashboard"]).trim()));
    browser.until("document.querySelectorAll('#curves figure').length === 1");
    // The page is as wide as the window, and what is wider is moved within it; no word is broken.
    let width = "document.documentElement.scrollWidth <= innerWidth";
    assert_eq!(browser.value(width), true);
    let lines = "Math.max(...Array.from(document.querySelectorAll('#trialrows td'), (cell) => cell.clientHeight)) < 40";
    assert_eq!(browser.value(lines), true);
    // The metric at its two steps, though no history was written.
    let points =
        "document.querySelector('#curves polyline').getAttribute('points').split(' ').length";
    assert_eq!(browser.value(points), 2);
}

/// No script ran, no markup came to be, and nothing was fetched from elsewhere.
fn check_nothing_ran(browser: &mut Browser) {
    assert_eq!(browser.value("typeof window.ran"), "undefined");
    let markup = "document.querySelectorAll('main script, main img, main iframe, main object, main style, main link, main meta, main details, main video, main math, #log *, #last *, [onload], [onerror], [onfocus]').length";
    assert_eq!(browser.value(markup), 0);
    let origin = browser.value("location.origin");
    let origin = origin.as_str().unwrap();
    assert!(
        browser.fetched.iter().any(|url| url.contains("/metrics")),
        "{:?}",
        browser.fetched
    );
    let others: Vec<_> = browser
        .fetched
        .iter()
        .filter(|url| !url.starts_with(origin))
        .collect();
    assert!(others.is_empty(), "{others:?}");
}
