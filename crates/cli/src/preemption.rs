//! `preemption_notice` of `fit`: a training hears of the end of its machine from who owns it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use std::{env, io, thread};

use phalanx::Result;
use phalanx::fit::preemption::{
    AwsNotice, AzureNotice, GceNotice, PreemptionNotice, PreemptionWatcher,
};

use crate::config::Cloud;
use crate::failure::{Exit, Failure};
use crate::output::notice_over_bar;

/// The host and port of a server that is asked in place of the cloud's own.
const SERVER: &str = "PHALANX_METADATA_SERVER";
/// As often as each of the three asks for; Amazon's notices come minutes before.
const EVERY: Duration = Duration::from_secs(1);

/// The longest that Azure's service takes for its first answer, which begins with the first question.
const AZURE_BEGINS: Duration = Duration::from_secs(120);

/// Sets the flag once the end of this machine is announced, and says so, while the watcher lives. Who is not quiet says once that the
/// server does not answer: at once, or for longer than the cloud's may.
///
/// # Errors
/// There can be no thread.
pub(crate) fn watch(
    cloud: Cloud,
    stop: &Arc<AtomicBool>,
    is_quiet: bool,
) -> Result<PreemptionWatcher> {
    let shown = ShownNotice {
        notice: notice_of(cloud),
        cloud,
        answered: (!is_quiet).then(Instant::now),
    };
    PreemptionWatcher::start(shown, EVERY, stop)
}

fn notice_of(cloud: Cloud) -> Box<dyn PreemptionNotice> {
    let server = env::var(SERVER).ok();
    match cloud {
        Cloud::Gce => Box::new(server.map_or_else(GceNotice::new, GceNotice::at)),
        Cloud::Aws => Box::new(server.map_or_else(AwsNotice::new, AwsNotice::at)),
        Cloud::Azure => Box::new(server.map_or_else(AzureNotice::new, AzureNotice::at)),
    }
}

/// The longest wait: Google's and Amazon's machines are gone by then.
const WITHDRAWN_WITHIN: Duration = Duration::from_secs(240);

/// Waits while the end of this machine is announced, and says so: who started a training again at once that had ended by the notice has no
/// more of it than a step, again and again. `others_wait`: how long the other processes of the training wait for this one.
///
/// # Errors
/// It still is after four minutes, or a while before the others have waited in vain.
pub(crate) fn wait_until_withdrawn(
    cloud: Cloud,
    others_wait: Duration,
) -> std::result::Result<(), Failure> {
    let mut notice = notice_of(cloud);
    let within = WITHDRAWN_WITHIN.min(others_wait * 4 / 5);
    is_withdrawn(cloud.name(), || notice.is_given(), within)
}

fn is_withdrawn(
    cloud: &str,
    mut is_given: impl FnMut() -> io::Result<bool>,
    within: Duration,
) -> std::result::Result<(), Failure> {
    let begun = Instant::now();
    let mut was_said = false;
    let mut answer = is_given();
    if answer.as_ref().is_err_and(is_late) {
        answer = is_given();
    }
    // A server that does not answer announces nothing, and takes nothing back.
    while answer.unwrap_or(was_said) {
        let seconds = within.as_secs_f64();
        if begun.elapsed() >= within {
            let message = format!(
                "the end of this machine is announced (`preemption_notice: {cloud}`), still after {seconds} s, and nothing was trained"
            );
            return Err(Failure::new(Exit::Terminated, message)
                .next("start it again on another machine, or leave the key out"));
        }
        if !was_said {
            was_said = true;
            notice_over_bar(format_args!(
                "the end of this machine is announced (`preemption_notice: {cloud}`): the training waits {seconds} s for that to be taken back, and does not begin before"
            ));
        }
        thread::sleep(EVERY.min(within.saturating_sub(begun.elapsed())));
        answer = is_given();
    }
    Ok(())
}

/// Whether a server may still answer that did not within its time.
fn is_late(error: &io::Error) -> bool {
    [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock].contains(&error.kind())
}

/// A notice that the user hears of.
struct ShownNotice {
    notice: Box<dyn PreemptionNotice>,
    cloud: Cloud,
    /// The last answer, or the start; none once it was said that none comes.
    answered: Option<Instant>,
}

impl ShownNotice {
    /// Whether to say that no answer has come until now, which is said once.
    fn is_unanswered(&mut self, now: Instant) -> bool {
        let patience = match self.cloud {
            Cloud::Gce | Cloud::Aws => Duration::ZERO,
            Cloud::Azure => AZURE_BEGINS,
        };
        let is_late = |since: &mut Instant| now.duration_since(*since) >= patience;
        self.answered.take_if(is_late).is_some()
    }
}

impl PreemptionNotice for ShownNotice {
    fn is_given(&mut self) -> io::Result<bool> {
        let given = self.notice.is_given();
        let (cloud, now) = (self.cloud.name(), Instant::now());
        if given.is_ok() {
            self.answered = self.answered.map(|_| now);
        }
        match &given {
            Ok(true) => notice_over_bar(format_args!(
                "the end of this machine is announced (`preemption_notice: {cloud}`): the training ends after this step, with a checkpoint"
            )),
            Err(error) if self.is_unanswered(now) => notice_over_bar(format_args!(
                "warning: the server of `preemption_notice: {cloud}` does not answer ({error}), and is asked again each second; leave the key out where the machine is none of this cloud's"
            )),
            _ => {}
        }
        given
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_may_take_a_while_is_given_it_after_each_answer() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for (cloud, late) in [(Cloud::Gce, 0), (Cloud::Aws, 0), (Cloud::Azure, 120)] {
            let answered = |answered| ShownNotice {
                notice: Box::new(GceNotice::new()),
                cloud,
                answered,
            };
            let mut notice = answered(Some(start));
            assert!((0..late).all(|second| !notice.is_unanswered(at(second))));
            assert!(notice.is_unanswered(at(late)));
            assert!(!notice.is_unanswered(at(late + 1)), "it is said twice");
            assert!(!answered(None).is_unanswered(at(late)), "it is quiet");
        }
    }

    #[test]
    fn a_training_does_not_begin_while_its_machine_is_about_to_end() {
        let lost = || Err(io::ErrorKind::TimedOut.into());
        let lost_later = vec![Ok(false), lost(), Ok(true)];
        let lost_at_first = vec![Ok(false), Ok(true), lost()];
        for mut answers in [lost_later, lost_at_first] {
            let is_given = || answers.pop().unwrap();
            assert!(is_withdrawn("gce", is_given, EVERY * 60).is_ok());
            assert!(answers.is_empty(), "a lost answer took it back");
        }
        assert!(is_withdrawn("gce", lost, EVERY * 60).is_ok());
        let within = Duration::from_millis(20);
        let failure = is_withdrawn("aws", || Ok(true), within).unwrap_err();
        assert_eq!(failure.exit, Exit::Terminated);
        assert!(failure.message.contains("aws") && failure.message.contains("0.02 s"));
    }

    /// Answers that come to a question, and none after them.
    struct Answers(u32);

    impl PreemptionNotice for Answers {
        fn is_given(&mut self) -> io::Result<bool> {
            let left = self.0.checked_sub(1);
            self.0 = left.unwrap_or(0);
            left.map(|_| false).ok_or(io::ErrorKind::TimedOut.into())
        }
    }

    #[test]
    fn silence_is_counted_from_the_last_answer() {
        let start = Instant::now() - Duration::from_secs(121);
        for (answers, warned) in [(0, true), (1, false)] {
            let mut shown = ShownNotice {
                notice: Box::new(Answers(answers)),
                cloud: Cloud::Azure,
                answered: Some(start),
            };
            (0..3).for_each(|_| drop(shown.is_given()));
            assert_eq!(shown.answered.is_none(), warned, "{answers} answers");
        }
    }
}
