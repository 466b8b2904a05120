//! What a worker pulls: values of variables, rows of tables, the whole state.

use std::sync::Arc;
use std::time::{Duration, Instant};

use phalanx_graph::{HostTensor, Shape};
use phalanx_ps::{Clock, Commit, Reply, Request};

use super::super::contents::divided;
use super::super::explained;
use super::super::layout::StateLayout;
use super::super::narrow::Wire;
use super::super::row_cache;
use super::super::values::{COMMON_SLOTS, NARROW_ROWS, NARROW_VALUES, ROWS, VALUES};
use super::{Servers, locked, unexpected};

use crate::{Error, Result};

/// Of each server the version and revision of what was pulled.
type Stamps = Vec<Option<(u64, u64)>>;

/// What was pulled last.
#[derive(Default)]
pub(super) struct Pull {
    wire: Wire,
    stamps: Stamps,
    bytes: Vec<Vec<u8>>,
    values: Option<PulledValues>,
    state: Option<(Stamps, Arc<Vec<HostTensor>>)>,
}

/// PulledValues of all variables.
#[derive(Clone)]
pub(crate) struct PulledValues {
    pub(crate) iterations: i64,
    pub(crate) variables: Arc<Vec<HostTensor>>,
    /// The number of updates of each server that made them.
    pub(super) versions: Vec<u64>,
}

impl PulledValues {
    /// Whether both were pulled at once.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.variables, &other.variables)
    }
}

/// Asks for something of the values, whatever was pulled before.
fn asks(what: &str) -> Request {
    Request::Pull {
        have: None,
        commit: None,
        what: what.to_owned(),
    }
}

/// Rows of each table that a step names.
pub(crate) struct PulledRows {
    pub(crate) values: Vec<Vec<f32>>,
    /// How many of them were not pulled now.
    pub(crate) cached: u64,
}

impl Servers {
    /// The present values of all variables; the ones before where nothing has changed.
    pub(crate) fn values(&self) -> Result<PulledValues> {
        self.values_as(Wire::Same)
    }

    /// The same for a step, as they travel to it.
    pub(crate) fn values_of_step(&self) -> Result<PulledValues> {
        self.values_as(self.exchange.wire)
    }

    /// The number of updates.
    pub(crate) fn iterations(&self) -> Result<i64> {
        Ok(self.newest()?.iterations)
    }

    /// The same; none where no model is on the servers.
    pub(crate) fn updates(&self) -> Result<i64> {
        let has_model = locked(&self.layout).is_some();
        if has_model { self.iterations() } else { Ok(0) }
    }

    /// The present values as they were pulled last.
    fn newest(&self) -> Result<PulledValues> {
        let wire = locked(&self.pulled).wire;
        self.values_as(wire)
    }

    fn values_as(&self, wire: Wire) -> Result<PulledValues> {
        let layout = self.layout()?;
        let commits = self.commits(&layout)?;
        let mut pulled = locked(&self.pulled);
        pulled.prepare(self.client.servers(), wire);
        let what = match wire {
            Wire::Same => VALUES,
            _ => NARROW_VALUES,
        };
        let start = Instant::now();
        loop {
            let stamps = &pulled.stamps;
            let answers = self.ask_all(|server| {
                let request = Request::Pull {
                    have: stamps[server],
                    commit: commits[server].clone(),
                    what: what.to_owned(),
                };
                (request, Vec::new())
            })?;
            if pulled.take(answers)? {
                break;
            }
            self.check_patience(start, &[0], "it brings the first values")?;
            std::thread::sleep(Duration::from_millis(50));
        }
        if pulled.values.is_none() {
            let (iterations, variables) = layout.values(&pulled.bytes, wire)?;
            let versions = pulled.stamps.iter();
            pulled.values = Some(PulledValues {
                iterations,
                variables: Arc::new(variables),
                versions: versions
                    .map(|stamp| stamp.map_or(0, |(version, _)| version))
                    .collect(),
            });
        }
        let values = pulled.values.clone();
        values.ok_or_else(|| Error::Bug("values that were pulled are gone".into()))
    }

    /// The last step that was taken together as each server is to hear of it.
    fn commits(&self, layout: &StateLayout) -> Result<Vec<Option<Commit>>> {
        let commit = locked(&self.commit).clone();
        let servers = self.client.servers();
        let Some(commit) = commit else {
            return Ok(vec![None; servers]);
        };
        if !layout.clips() {
            return Ok(vec![Some(commit); servers]);
        }
        let answers = self.ask_all(|_| {
            let (version, parts) = (commit.version, commit.parts.clone());
            (Request::Squares { version, parts }, Vec::new())
        })?;
        let squares = answers.into_iter().map(|(reply, _)| match reply {
            Reply::Squares(squares) => Ok(squares),
            other => Err(unexpected(&other)),
        });
        let squares: Vec<Vec<f64>> = squares.collect::<Result<_>>()?;
        let factors = layout.factors(&squares);
        Ok(factors
            .into_iter()
            .map(|factors| {
                Some(Commit {
                    factors: Some(factors),
                    ..commit.clone()
                })
            })
            .collect())
    }

    /// An array of the state, with as few others as there must be.
    pub(crate) fn array(&self, index: usize) -> Result<HostTensor> {
        let layout = self.layout()?;
        if layout.is_in_values(index) {
            return Ok(self.values()?.variables[index].clone());
        }
        let (positions, shapes): (Vec<usize>, Vec<Shape>) = layout.common_slots().unzip();
        let Some(at) = positions.iter().position(|position| *position == index) else {
            return Ok(self.state()?[index].clone());
        };
        let request = Request::Pull {
            have: None,
            commit: self.commits(&layout)?.swap_remove(0),
            what: COMMON_SLOTS.to_owned(),
        };
        let asked = self.client.ask_server(0, &request, &[]);
        let (_, bytes) = asked.map_err(explained)?;
        let slots = divided(shapes, &bytes).map_err(Error::Cluster)?;
        Ok(slots[at].clone())
    }

    /// All of the state: variables, slots, iterations.
    pub(crate) fn state(&self) -> Result<Arc<Vec<HostTensor>>> {
        self.newest()?;
        let layout = self.layout()?;
        let mut pulled = locked(&self.pulled);
        if let Some((stamps, state)) = &pulled.state
            && *stamps == pulled.stamps
        {
            return Ok(Arc::clone(state));
        }
        let answers = self.ask_all(|_| (asks("state"), Vec::new()))?;
        let bytes: Vec<Vec<u8>> = answers.into_iter().map(|(_, bytes)| bytes).collect();
        let mut state = layout.state(&bytes)?;
        if layout.has_tables() {
            let answers = self.ask_all(|_| (asks("tables"), Vec::new()))?;
            let changed: Vec<Vec<u8>> = answers.into_iter().map(|(_, bytes)| bytes).collect();
            layout.fill_tables(&mut state, &changed)?;
        }
        let state = Arc::new(state);
        pulled.state = Some((pulled.stamps.clone(), Arc::clone(&state)));
        Ok(state)
    }

    /// Rows of each table, by their numbers, as they are now.
    pub(crate) fn rows(&self, named: &[Vec<u64>]) -> Result<Vec<Vec<f32>>> {
        self.rows_as(named, Wire::Same)
    }

    /// The same for a step, as they travel to it; from this worker's cache where the bound of staleness permits.
    pub(crate) fn rows_of_step(
        &self,
        clock: Option<Clock>,
        named: &[Vec<u64>],
    ) -> Result<PulledRows> {
        let wire = self.exchange.wire;
        let (Some(clock), Some(bound)) = (clock, self.cache_bound()) else {
            return Ok(PulledRows {
                values: self.rows_as(named, wire)?,
                cached: 0,
            });
        };
        let layout = self.layout()?;
        let oldest = clock.own.saturating_sub(bound);
        let mut cache = locked(&self.row_cache);
        cache.go_on(clock.own);
        let (mut values, mut missing) = (Vec::new(), vec![Vec::new(); named.len()]);
        for (table, numbers) in named.iter().enumerate() {
            let width = layout.width(table);
            let mut rows = vec![0.0; numbers.len() * width];
            for (number, row) in numbers.iter().zip(rows.chunks_exact_mut(width)) {
                match cache.find((table, *number), oldest) {
                    Some(found) => row.copy_from_slice(found),
                    None => missing[table].push(*number),
                }
            }
            values.push(rows);
        }
        let pulled = self.rows_as(&missing, wire)?;
        let stamp = row_cache::stamp(self.mode, clock);
        let mut cached = 0;
        for (table, numbers) in named.iter().enumerate() {
            let width = layout.width(table);
            let mut news = missing[table].iter().zip(pulled[table].chunks_exact(width));
            let mut next = news.next();
            for (number, row) in numbers.iter().zip(values[table].chunks_exact_mut(width)) {
                match next {
                    Some((new, pulled)) if new == number => {
                        row.copy_from_slice(pulled);
                        let most = self.exchange.cache.rows;
                        cache.keep((table, *number), stamp, pulled, most);
                        next = news.next();
                    }
                    _ => cached += 1,
                }
            }
        }
        Ok(PulledRows { values, cached })
    }

    /// How old the rows may be that this worker keeps, where it keeps some.
    pub(crate) fn cache_bound(&self) -> Option<u64> {
        let has_tables = locked(&self.layout)
            .as_ref()
            .is_some_and(|layout| layout.has_tables());
        let bound = self.exchange.cache.bound(self.mode);
        bound.filter(|_| has_tables)
    }

    /// Asks no server where no row is named.
    fn rows_as(&self, named: &[Vec<u64>], wire: Wire) -> Result<Vec<Vec<f32>>> {
        if named.iter().all(Vec::is_empty) {
            return Ok(vec![Vec::new(); named.len()]);
        }
        let layout = self.layout()?;
        let asked = layout.asked(named);
        let what = match wire {
            Wire::Same => ROWS,
            _ => NARROW_ROWS,
        };
        let answers = self.ask_all(|server| (asks(what), asked[server].clone()))?;
        let answers: Vec<Vec<u8>> = answers.into_iter().map(|(_, bytes)| bytes).collect();
        layout.answered(named, &answers, wire)
    }
}

impl Pull {
    /// Forgets what was pulled as something else.
    fn prepare(&mut self, servers: usize, wire: Wire) {
        if self.wire != wire {
            *self = Self {
                wire,
                state: self.state.take(),
                ..Self::default()
            };
        }
        self.stamps.resize(servers, None);
        self.bytes.resize_with(servers, Vec::new);
    }

    /// Takes the answers of all servers; whether they have values.
    fn take(&mut self, answers: Vec<(Reply, Vec<u8>)>) -> Result<bool> {
        for (server, (reply, bytes)) in answers.into_iter().enumerate() {
            match reply {
                Reply::NotYet { .. } => return Ok(false),
                Reply::Values(now) if now.unchanged => {}
                Reply::Values(now) => {
                    self.stamps[server] = Some((now.version, now.revision));
                    self.bytes[server] = bytes;
                    self.values = None;
                }
                other => return Err(unexpected(&other)),
            }
        }
        Ok(true)
    }
}
