//! The order in which a device visits its examples, drawn as on the CPU from the same keyed stream.
//!
//! An order depends on the seed, the round and the device, but not on w. A separate thread draws
//! the orders of the next cohort while the GPU trains this one ([`Orders`]).

use std::collections::HashMap;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};

use deltafl::data::{Federation, FederationIndex};
use deltafl::device::{stream_key, update_stream};
use deltafl::question::RoundKey;
use deltafl::trainer::{LocalPlan, Work};
use rayon::prelude::*;

/// The number of draws that cost about as much as waking a thread.
const WORTH_A_THREAD: usize = 1 << 12;

/// A device's draws in a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceDraws {
    /// The additional input of the stream: `device::stream_key` of the device.
    pub(crate) key: u64,
    /// n_k: the number of examples.
    pub(crate) examples: u32,
    /// The offset of the examples in the GPU columns.
    pub(crate) offset: u32,
}

/// Entries per pass and number of passes. A run of steps is one pass over all of its draws.
pub(crate) fn passes(plan: &LocalPlan, examples: u32) -> (u32, u32) {
    match plan.work {
        Work::Epochs(epochs) => (examples, epochs),
        Work::Steps(steps) => (steps.saturating_mul(u32::try_from(plan.batch).unwrap_or(u32::MAX)), 1),
    }
}

impl DeviceDraws {
    /// Returns the total number of entries.
    pub(crate) fn len(&self, plan: &LocalPlan) -> usize {
        let (draws, passes) = passes(plan, self.examples);
        draws as usize * passes as usize
    }

    /// Writes the positions of the examples in the columns, in the order of `trainer::Sgd`.
    pub(crate) fn write(&self, round: &RoundKey, plan: &LocalPlan, order: &mut [u32]) {
        let mut stream = update_stream(round, self.key);
        match plan.work {
            Work::Epochs(_) => {
                for pass in order.chunks_exact_mut(self.examples.max(1) as usize) {
                    // A shuffle of 0..n plus the offset equals the shuffle of the shifted numbers.
                    pass.iter_mut().zip(self.offset..).for_each(|(entry, i)| *entry = i);
                    stream.shuffle(pass);
                }
            }
            Work::Steps(_) => {
                let draw = || self.offset + stream.below(u64::from(self.examples)) as u32;
                order.fill_with(draw);
            }
        }
    }
}

/// The order of a device within a wave.
pub(crate) enum Order<'a> {
    /// Drawn in advance, relative to the device's first example.
    Drawn {
        drawn: &'a [u32],
        offset: u32,
    },
    ToDraw {
        draws: DeviceDraws,
        plan: &'a LocalPlan,
    },
}

impl Order<'_> {
    /// Returns the number of entries.
    fn len(&self) -> usize {
        match self {
            Self::Drawn { drawn, .. } => drawn.len(),
            Self::ToDraw { draws, plan } => draws.len(plan),
        }
    }

    /// Returns the number of entries that remain to be drawn.
    fn to_draw(&self) -> usize {
        if matches!(self, Self::ToDraw { .. }) { self.len() } else { 0 }
    }

    fn write(&self, round: &RoundKey, order: &mut [u32]) {
        match self {
            Self::Drawn { drawn, offset } => {
                order.iter_mut().zip(*drawn).for_each(|(entry, i)| *entry = i + offset);
            }
            Self::ToDraw { draws, plan } => draws.write(round, plan, order),
        }
    }
}

/// Writes orders contiguously, on all cores if that is faster.
pub(crate) fn write_all(round: &RoundKey, orders: &[Order<'_>], host: &mut [u32]) {
    let mut rest = host;
    let mut parts = Vec::with_capacity(orders.len());
    let mut to_draw = 0;
    for order in orders {
        let (part, after) = rest.split_at_mut(order.len());
        rest = after;
        parts.push((order, part));
        to_draw += order.to_draw();
    }
    if to_draw <= WORTH_A_THREAD {
        parts.into_iter().for_each(|(order, part)| order.write(round, part));
    } else {
        let together = (WORTH_A_THREAD * parts.len() / to_draw).max(1);
        parts.into_par_iter().with_min_len(together).for_each(|(order, part)| order.write(round, part));
    }
}

/// Orders of some devices in one round, drawn in advance. A thread draws them, because this may
/// take longer than the GPU needs for a round.
#[derive(Default)]
pub(crate) struct Orders {
    /// Seed, round and plan, or `None` if nothing has been drawn.
    of: Option<(u64, u64, Work, usize)>,
    places: HashMap<FederationIndex, Range<usize>>,
    /// Relative to the first example of each device.
    entries: Vec<u32>,
    thread: Option<Drawer>,
    /// Whether the thread currently owns the entries.
    drawing: bool,
}

impl Orders {
    /// Starts to draw the orders of some devices. Earlier orders are discarded.
    pub(crate) fn draw(
        &mut self,
        federation: &Federation,
        round: &RoundKey,
        plan: &LocalPlan,
        devices: &[FederationIndex],
    ) {
        self.wait();
        self.of = Some((round.seed, round.round, plan.work, plan.batch));
        self.places.clear();
        let (mut all, mut len) = (Vec::with_capacity(devices.len()), 0);
        for &device in devices {
            let examples = federation.example_count(device) as u32;
            if self.places.contains_key(&device) || examples == 0 {
                continue;
            }
            let draws = DeviceDraws { key: stream_key(federation.id(device)), examples, offset: 0 };
            let place = len..len + draws.len(plan);
            len = place.end;
            self.places.insert(device, place);
            all.push(draws);
        }
        let job = Job { round: *round, plan: *plan, draws: all, entries: std::mem::take(&mut self.entries) };
        self.thread = self.thread.take().or_else(Drawer::start);
        match &self.thread {
            Some(thread) => {
                self.drawing = true;
                thread.send(job);
            }
            None => self.entries = job.done(),
        }
    }

    /// Waits until the orders have been drawn.
    pub(crate) fn wait(&mut self) {
        if std::mem::take(&mut self.drawing)
            && let Some(thread) = &self.thread
        {
            self.entries = thread.receive();
        }
    }

    /// Returns the order of a device, if it has been drawn. Call [`Self::wait`] first.
    pub(crate) fn get(&self, round: &RoundKey, plan: &LocalPlan, device: FederationIndex) -> Option<&[u32]> {
        let wanted = (round.seed, round.round, plan.work, plan.batch);
        let place = self.places.get(&device).filter(|_| self.of == Some(wanted))?;
        self.entries.get(place.clone())
    }
}

/// Orders to draw, contiguously.
struct Job {
    round: RoundKey,
    plan: LocalPlan,
    draws: Vec<DeviceDraws>,
    entries: Vec<u32>,
}

impl Job {
    fn done(mut self) -> Vec<u32> {
        let len = self.draws.iter().map(|draws| draws.len(&self.plan)).sum();
        self.entries.resize(len, 0);
        let orders: Vec<Order<'_>> =
            self.draws.iter().map(|&draws| Order::ToDraw { draws, plan: &self.plan }).collect();
        write_all(&self.round, &orders, &mut self.entries);
        self.entries
    }
}

/// A thread that draws orders. It ends when this value is dropped.
struct Drawer {
    jobs: Sender<Job>,
    drawn: Receiver<Vec<u32>>,
}

impl Drawer {
    /// `None` if no thread could be started.
    fn start() -> Option<Self> {
        let (jobs, jobs_of_thread) = channel::<Job>();
        let (drawn_of_thread, drawn) = channel();
        let work = move || {
            for job in jobs_of_thread {
                if drawn_of_thread.send(job.done()).is_err() {
                    break;
                }
            }
        };
        std::thread::Builder::new().name("orders".to_owned()).spawn(work).ok()?;
        Some(Self { jobs, drawn })
    }

    fn send(&self, job: Job) {
        self.jobs.send(job).expect("the thread lives as long as this value");
    }

    fn receive(&self) -> Vec<u32> {
        self.drawn.recv().expect("the thread answers every job")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deltafl::data::{DeviceExamples, FederationBuilder, InputKind, Split};

    const ROUND: RoundKey =
        RoundKey { run: 0, seed: 5, round: 9, members: 3, terms: deltafl::terms::Terms::OPEN };

    fn plan(work: Work) -> LocalPlan {
        LocalPlan { work, batch: 4, learning_rate: 0.1, l2: 0.0, proximal: 0.0, correction: None }
    }

    fn drawn(work: Work, offset: u32) -> Vec<u32> {
        let draws = DeviceDraws { key: 77, examples: 10, offset };
        let mut order = vec![u32::MAX; draws.len(&plan(work))];
        draws.write(&ROUND, &plan(work), &mut order);
        order
    }

    #[test]
    fn epochs_match_the_shuffles_of_the_cpu() {
        let (mut stream, mut expected) = (update_stream(&ROUND, 77), Vec::new());
        for _ in 0..3 {
            let mut order: Vec<u32> = (0..10).collect();
            stream.shuffle(&mut order);
            expected.extend(order);
        }
        assert_eq!(drawn(Work::Epochs(3), 0), expected);
        assert_eq!(drawn(Work::Epochs(3), 100), expected.iter().map(|i| i + 100).collect::<Vec<_>>());
    }

    #[test]
    fn steps_match_the_draws_of_the_cpu() {
        let mut stream = update_stream(&ROUND, 77);
        let expected: Vec<u32> = (0..8).map(|_| stream.below(10) as u32 + 3).collect();
        assert_eq!(drawn(Work::Steps(2), 3), expected);
    }

    #[test]
    fn orders_are_contiguous_whether_drawn_in_advance_or_not() {
        let (plan, key) = (plan(Work::Epochs(2)), |device: u64| device * 11);
        let order = |k, examples, offset| {
            let draws = DeviceDraws { key: key(k), examples, offset };
            Order::ToDraw { draws, plan: &plan }
        };
        let mut drawn = vec![0; 6];
        DeviceDraws { key: key(2), examples: 3, offset: 0 }.write(&ROUND, &plan, &mut drawn);
        for second in [order(2, 3, 40), Order::Drawn { drawn: &drawn, offset: 40 }] {
            let mut together = vec![0; 16];
            write_all(&ROUND, &[order(1, 5, 0), second], &mut together);
            let mut alone = (vec![0; 10], vec![0; 6]);
            order(1, 5, 0).write(&ROUND, &mut alone.0);
            order(2, 3, 40).write(&ROUND, &mut alone.1);
            assert_eq!(together, [alone.0, alone.1].concat());
        }
    }

    #[test]
    fn an_order_drawn_in_advance_is_used_only_for_its_round_and_plan() {
        let mut builder = FederationBuilder::new("t", InputKind::Dense { dim: 1 }, 2);
        for (name, count) in [("a", 5), ("b", 9)] {
            let labels = vec![0; count];
            builder.push(name, Split::Train, DeviceExamples::Dense(&vec![0.0; count]), &labels).unwrap();
        }
        let (federation, plan) = (builder.build(), plan(Work::Epochs(2)));
        let mut orders = Orders::default();
        let (first, second) = (FederationIndex(0), FederationIndex(1));
        assert_eq!(orders.get(&ROUND, &plan, second), None);
        orders.draw(&federation, &RoundKey { round: 3, ..ROUND }, &plan, &[first]);
        orders.draw(&federation, &ROUND, &plan, &[second, second]);
        orders.wait();
        let mut expected = vec![0; 18];
        DeviceDraws { key: stream_key("b"), examples: 9, offset: 0 }.write(&ROUND, &plan, &mut expected);
        assert_eq!(orders.get(&ROUND, &plan, FederationIndex(1)), Some(expected.as_slice()));
        assert_eq!(orders.get(&ROUND, &plan, FederationIndex(0)), None, "it was not announced");
        assert_eq!(orders.get(&RoundKey { round: 10, ..ROUND }, &plan, FederationIndex(1)), None);
        assert_eq!(orders.get(&RoundKey { run: 0, seed: 6, ..ROUND }, &plan, FederationIndex(1)), None);
        assert_eq!(
            orders.get(&ROUND, &LocalPlan { work: Work::Epochs(1), ..plan }, FederationIndex(1)),
            None
        );
    }
}
