//! Reverse-mode differentiation of scalars in f64: the independent word on every gradient.

/// What has been computed, in order.
#[derive(Default)]
pub(crate) struct Tape {
    values: Vec<f64>,
    /// Where each value came from, with the partial derivatives.
    sources: Vec<[(usize, f64); 2]>,
}

/// A value on the tape.
#[derive(Clone, Copy)]
pub(crate) struct Var(usize);

impl Tape {
    /// A value that depends on nothing.
    pub(crate) fn leaf(&mut self, value: f64) -> Var {
        self.push(value, [(0, 0.0); 2])
    }

    pub(crate) fn leaves(&mut self, values: &[f64]) -> Vec<Var> {
        values.iter().map(|&value| self.leaf(value)).collect()
    }

    pub(crate) fn value(&self, a: Var) -> f64 {
        self.values[a.0]
    }

    pub(crate) fn add(&mut self, a: Var, b: Var) -> Var {
        self.push(self.value(a) + self.value(b), [(a.0, 1.0), (b.0, 1.0)])
    }

    pub(crate) fn mul(&mut self, a: Var, b: Var) -> Var {
        let (x, y) = (self.value(a), self.value(b));
        self.push(x * y, [(a.0, y), (b.0, x)])
    }

    pub(crate) fn scale(&mut self, a: Var, factor: f64) -> Var {
        self.push(self.value(a) * factor, [(a.0, factor), (0, 0.0)])
    }

    /// f(a), given f'(a).
    pub(crate) fn apply(&mut self, a: Var, value: f64, slope: f64) -> Var {
        self.push(value, [(a.0, slope), (0, 0.0)])
    }

    pub(crate) fn exp(&mut self, a: Var) -> Var {
        let e = self.value(a).exp();
        self.apply(a, e, e)
    }

    pub(crate) fn ln(&mut self, a: Var) -> Var {
        let x = self.value(a);
        self.apply(a, x.ln(), 1.0 / x)
    }

    pub(crate) fn sigmoid(&mut self, a: Var) -> Var {
        let s = 1.0 / (1.0 + (-self.value(a)).exp());
        self.apply(a, s, s * (1.0 - s))
    }

    pub(crate) fn tanh(&mut self, a: Var) -> Var {
        let t = self.value(a).tanh();
        self.apply(a, t, 1.0 - t * t)
    }

    pub(crate) fn relu(&mut self, a: Var) -> Var {
        if self.value(a) > 0.0 { a } else { self.apply(a, 0.0, 0.0) }
    }

    /// The first largest.
    pub(crate) fn max(&self, items: &[Var]) -> Var {
        let mut best = items[0];
        for &item in items {
            if self.value(item) > self.value(best) {
                best = item;
            }
        }
        best
    }

    pub(crate) fn sum(&mut self, items: &[Var]) -> Var {
        let zero = self.leaf(0.0);
        items.iter().fold(zero, |sum, &item| self.add(sum, item))
    }

    pub(crate) fn dot(&mut self, a: &[Var], b: &[Var]) -> Var {
        let products: Vec<Var> = a.iter().zip(b).map(|(&a, &b)| self.mul(a, b)).collect();
        self.sum(&products)
    }

    /// log Σ exp(z) − z_y.
    pub(crate) fn cross_entropy(&mut self, logits: &[Var], label: usize) -> Var {
        let exps: Vec<Var> = logits.iter().map(|&z| self.exp(z)).collect();
        let total = self.sum(&exps);
        let log = self.ln(total);
        let minus = self.scale(logits[label], -1.0);
        self.add(log, minus)
    }

    /// The derivatives of `output` with respect to `inputs`.
    pub(crate) fn gradient(&self, output: Var, inputs: &[Var]) -> Vec<f64> {
        let mut slopes = vec![0.0; self.values.len()];
        slopes[output.0] = 1.0;
        for i in (0..=output.0).rev() {
            for (source, partial) in self.sources[i] {
                slopes[source] += slopes[i] * partial;
            }
        }
        inputs.iter().map(|input| slopes[input.0]).collect()
    }

    fn push(&mut self, value: f64, sources: [(usize, f64); 2]) -> Var {
        // Place 0 takes in what has no source.
        if self.values.is_empty() {
            self.values.push(0.0);
            self.sources.push([(0, 0.0); 2]);
        }
        self.values.push(value);
        self.sources.push(sources);
        Var(self.values.len() - 1)
    }
}
