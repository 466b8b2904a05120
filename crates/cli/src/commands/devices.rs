//! `phalanx devices`.

use phalanx_pjrt::{Client, Device, OptionValue, Platform};

use super::Context;
use crate::failure::{Exit, Failure};
use crate::locate;
use crate::machine::bytes;
use crate::output::notice;

/// Lists the devices of a platform's plugin.
pub(crate) fn run(context: &mut Context, platform: Platform) -> Result<(), Failure> {
    let found = locate::plugin(&context.search, &context.global, platform)?;
    let plugin = locate::load(&found)?;
    if let Some(warning) = plugin.warning().filter(|_| !context.global.quiet) {
        notice(format_args!("warning: {warning}"));
    }
    // The host is one device unless a program asks for more; the plugin's own default is a number of its build.
    let options: &[_] = match platform {
        Platform::Cpu => &[("cpu_device_count", OptionValue::Int(1))],
        _ => &[],
    };
    let client = Client::new(&plugin, options).map_err(|error| {
        Failure::new(
            Exit::NotReady,
            format!(
                "the {platform} plugin {} found no devices: {error}",
                found.path.display()
            ),
        )
        .next("check the driver of the device, or choose another --platform")
    })?;
    let (major, minor) = plugin.api_version();
    context.output.line(format_args!(
        "{}  {}  (pjrt api {major}.{minor}, from {})",
        client.platform(),
        found.path.display(),
        found.source
    ))?;
    for (index, device) in client.devices().iter().enumerate() {
        context.output.line(row(&client, index, device))?;
    }
    Ok(())
}

fn row(client: &Client, index: usize, device: &Device) -> String {
    let limit = client
        .memory_stats(index)
        .ok()
        .and_then(|stats| stats.limit);
    let memory = limit
        .and_then(|limit| u64::try_from(limit).ok())
        .map_or_else(|| "memory of the host".into(), bytes);
    format!(
        "  {index}: id {}, kind {}, process {}, {memory}",
        device.id, device.kind, device.process_index
    )
}
