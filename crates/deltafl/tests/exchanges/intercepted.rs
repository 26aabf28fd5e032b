//! An exchange for tests that intercepts calls of another exchange. Other crates include this file.

use deltafl::data::Split;
use deltafl::exchange::{
    CohortAnswers, CohortMember, CohortSum, Evaluation, Exchange, ExchangeError, NamedLoss, PersonalModels,
    Reachable, Round, SplitEvaluation,
};
use deltafl::params::Params;
use deltafl::question::Query;

/// Computes a sum by the inner exchange, or in its place.
type SumHook<'h, E> = dyn FnMut(&mut E, &Round<'_>, &[Query]) -> Result<Vec<CohortSum>, ExchangeError> + 'h;

/// An exchange that forwards every call that a test does not intercept.
pub struct Intercepted<'h, E> {
    pub inner: E,
    on_reachable: Box<dyn FnMut() -> Option<Reachable> + 'h>,
    on_sum: Box<SumHook<'h, E>>,
    is_evaluated: bool,
}

impl<'h, E: Exchange> Intercepted<'h, E> {
    /// Forwards every call.
    pub fn new(inner: E) -> Self {
        let on_sum = |inner: &mut E, round: &Round<'_>, queries: &[Query]| inner.secure_sum(round, queries);
        Self { inner, on_reachable: Box::new(|| None), on_sum: Box::new(on_sum), is_evaluated: true }
    }

    /// Calls `hook` instead of [`Exchange::reachable`]. `None` forwards the call.
    pub fn on_reachable(self, hook: impl FnMut() -> Option<Reachable> + 'h) -> Self {
        Self { on_reachable: Box::new(hook), ..self }
    }

    /// Calls `hook` instead of [`Exchange::secure_sum`].
    pub fn on_sum(
        self,
        hook: impl FnMut(&mut E, &Round<'_>, &[Query]) -> Result<Vec<CohortSum>, ExchangeError> + 'h,
    ) -> Self {
        Self { on_sum: Box::new(hook), ..self }
    }

    /// Calls `hook` before every [`Exchange::secure_sum`].
    pub fn before_sum(self, mut hook: impl FnMut(&Round<'_>, &[Query]) + 'h) -> Self {
        self.on_sum(move |inner, round, queries| {
            hook(round, queries);
            inner.secure_sum(round, queries)
        })
    }

    /// Keeps the metrics of all devices private.
    pub fn without_evaluations(self) -> Self {
        Self { is_evaluated: false, ..self }
    }
}

impl<E: Exchange> Exchange for Intercepted<'_, E> {
    fn devices(&self) -> usize {
        self.inner.devices()
    }

    fn attempts(&self) -> u64 {
        self.inner.attempts()
    }

    fn announce(&mut self, next: &[CohortMember]) {
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
    ) -> Result<Vec<Vec<NamedLoss>>, ExchangeError> {
        self.inner.losses(round, params)
    }

    fn secure_sum(&mut self, round: &Round<'_>, queries: &[Query]) -> Result<Vec<CohortSum>, ExchangeError> {
        (self.on_sum)(&mut self.inner, round, queries)
    }

    fn each_answer(
        &mut self,
        round: &Round<'_>,
        queries: &[Query],
    ) -> Result<Vec<CohortAnswers>, ExchangeError> {
        self.inner.each_answer(round, queries)
    }

    fn evaluate(
        &mut self,
        split: Split,
        params: &[&Params],
    ) -> Result<Option<SplitEvaluation>, ExchangeError> {
        if self.is_evaluated { self.inner.evaluate(split, params) } else { Ok(None) }
    }

    fn evaluate_personal(
        &mut self,
        split: Split,
        models: &PersonalModels<'_>,
    ) -> Result<Option<Vec<Evaluation>>, ExchangeError> {
        if self.is_evaluated { self.inner.evaluate_personal(split, models) } else { Ok(None) }
    }
}
