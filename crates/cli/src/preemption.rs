//! `preemption_notice` of `fit`: a training hears of the end of its machine from who owns it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use std::{env, io, mem};

use phalanx::Result;
use phalanx::fit::preemption::{
    AwsNotice, AzureNotice, GceNotice, PreemptionNotice, PreemptionWatcher,
};

use crate::config::Cloud;
use crate::output::notice_over_bar;

/// The host and port of a server that is asked in place of the cloud's own.
const SERVER: &str = "PHALANX_METADATA_SERVER";
/// As often as each of the three asks for; Amazon's notices come minutes before.
const EVERY: Duration = Duration::from_secs(1);

/// Sets the flag once the end of this machine is announced, and says so, while the watcher lives. Who is not quiet says once that the
/// server does not answer.
///
/// # Errors
/// There can be no thread.
pub(crate) fn watch(
    cloud: Cloud,
    stop: &Arc<AtomicBool>,
    is_quiet: bool,
) -> Result<PreemptionWatcher> {
    let server = env::var(SERVER).ok();
    let notice: Box<dyn PreemptionNotice> = match cloud {
        Cloud::Gce => Box::new(server.map_or_else(GceNotice::new, GceNotice::at)),
        Cloud::Aws => Box::new(server.map_or_else(AwsNotice::new, AwsNotice::at)),
        Cloud::Azure => Box::new(server.map_or_else(AzureNotice::new, AzureNotice::at)),
    };
    let shown = ShownNotice {
        notice,
        cloud,
        says_unanswered: !is_quiet,
    };
    PreemptionWatcher::start(shown, EVERY, stop)
}

/// A notice that the user hears of.
struct ShownNotice {
    notice: Box<dyn PreemptionNotice>,
    cloud: Cloud,
    says_unanswered: bool,
}

impl PreemptionNotice for ShownNotice {
    fn is_given(&mut self) -> io::Result<bool> {
        let given = self.notice.is_given();
        let cloud = self.cloud.name();
        match &given {
            Ok(true) => notice_over_bar(format_args!(
                "the end of this machine is announced (`preemption_notice: {cloud}`): the training ends after this step, with a checkpoint"
            )),
            Err(error) if mem::take(&mut self.says_unanswered) => notice_over_bar(format_args!(
                "warning: the server of `preemption_notice: {cloud}` does not answer ({error}), and is asked again each second; leave the key out where the machine is none of this cloud's"
            )),
            _ => {}
        }
        given
    }
}
