//! An exchange in which a test does something of its own at two places, and passes everything else on.

use deltafl::data::Split;
use deltafl::exchange::{Drawn, Exchange, ExchangeError, Reachable, Round, SplitEvaluation, Sum};
use deltafl::params::Params;
use deltafl::question::Query;
use deltafl::superquantile::DeviceLoss;

/// What a test does before a sum.
type BeforeSum = dyn FnMut(&Round<'_>, &[Query]);

/// An exchange around another one.
pub struct Intercepted<E> {
    pub inner: E,
    on_reachable: Box<dyn FnMut() -> Option<Reachable>>,
    before_sum: Box<BeforeSum>,
}

impl<E: Exchange> Intercepted<E> {
    /// Passes everything on.
    pub fn new(inner: E) -> Self {
        Self { inner, on_reachable: Box::new(|| None), before_sum: Box::new(|_, _| ()) }
    }

    /// Calls `hook` whenever the exchange is asked who can be reached. What it returns is the answer; `None` lets the inner
    /// exchange answer.
    pub fn on_reachable(self, hook: impl FnMut() -> Option<Reachable> + 'static) -> Self {
        Self { on_reachable: Box::new(hook), ..self }
    }

    /// Calls `hook` before every secure sum.
    pub fn before_sum(self, hook: impl FnMut(&Round<'_>, &[Query]) + 'static) -> Self {
        Self { before_sum: Box::new(hook), ..self }
    }
}

impl<E: Exchange> Exchange for Intercepted<E> {
    fn devices(&self) -> usize {
        self.inner.devices()
    }

    fn attempts(&self) -> u64 {
        self.inner.attempts()
    }

    fn announce(&mut self, next: &[Drawn]) {
        self.inner.announce(next);
    }

    fn reachable(&mut self) -> Result<Reachable, ExchangeError> {
        match (self.on_reachable)() {
            Some(reachable) => Ok(reachable),
            None => self.inner.reachable(),
        }
    }

    fn losses(
        &mut self,
        round: &Round<'_>,
        params: &[&Params],
    ) -> Result<Vec<Vec<DeviceLoss>>, ExchangeError> {
        self.inner.losses(round, params)
    }

    fn secure_sum(&mut self, round: &Round<'_>, queries: &[Query]) -> Result<Vec<Sum>, ExchangeError> {
        (self.before_sum)(round, queries);
        self.inner.secure_sum(round, queries)
    }

    fn evaluate(
        &mut self,
        split: Split,
        params: &[&Params],
    ) -> Result<Option<SplitEvaluation>, ExchangeError> {
        self.inner.evaluate(split, params)
    }
}
