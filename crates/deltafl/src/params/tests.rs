use super::*;

fn sum_of(params: &[f32], updates: &[(&[f32], f64)]) -> UpdateSum {
    let code = UpdateCode::new(updates.len());
    let mut sum = vec![0; UpdateCode::len(params.len())];
    for (local, weight) in updates {
        let _ = code.add(params, local, *weight, &mut sum);
    }
    UpdateSum::new(sum, params.len()).unwrap()
}

#[test]
fn the_sum_moves_to_the_weighted_mean() {
    let params = Params::from(vec![1.0, -2.0]);
    let sum = sum_of(params.as_slice(), &[(&[2.0, -2.0], 3.0), (&[1.0, 2.0], 1.0)]);
    assert_eq!(sum.applied_to(&params).unwrap().as_slice(), [1.75, -1.0]);
    assert_eq!((sum.tail(), sum.refused()), (2, 0));
}

#[test]
fn a_non_finite_update_is_left_out_and_counted() {
    let params = Params::from(vec![1.0, 1.0]);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
        let sum = sum_of(params.as_slice(), &[(&[1.5, 1.0], 3.0), (&[1.0, bad], 1.0)]);
        assert_eq!(sum.applied_to(&params).unwrap().as_slice(), [1.5, 1.0]);
        assert_eq!((sum.tail(), sum.refused(), sum.tail_weight()), (1, 1, 3.0));
    }
}

#[test]
fn a_long_update_is_shortened_and_counts_as_before() {
    let params = Params::from(vec![1.0, 1.0]);
    let clipped = UpdateCode::new(2).clipped(Clip::try_from(2.5).ok());
    let sum = |updates: &[(&[f32], f64)]| {
        let mut sum = vec![0; UpdateCode::len(2)];
        updates.iter().for_each(|(local, weight)| {
            _ = clipped.add(params.as_slice(), local, *weight, &mut sum);
        });
        UpdateSum::new(sum, 2).unwrap()
    };
    // (3, 4) has norm 5, and (1.5, 2) has norm 2.5.
    let long = sum(&[(&[4.0, 5.0], 3.0)]);
    assert_eq!(long.applied_to(&params).unwrap().as_slice(), [2.5, 3.0]);
    assert_eq!((long.tail(), long.tail_weight()), (1, 3.0));
    let short = sum(&[(&[2.5, 3.0], 3.0)]);
    assert_eq!(long, short, "one that is not too long stays as it is");
    let far = sum(&[(&[f32::MAX, 1.0], 1.0), (&[1.0, f32::MIN], 1.0)]);
    assert_eq!(far.applied_to(&params).unwrap().as_slice(), [2.25, -0.25]);
    for bad in [f32::NAN, f32::INFINITY] {
        assert_eq!((sum(&[(&[bad, 1.0], 1.0)]).tail(), sum(&[(&[bad, 1.0], 1.0)]).refused()), (0, 1));
    }
}

#[test]
fn a_long_sum_has_the_bits_of_its_parts() {
    let value = |i: usize| ((i as f32) * 0.37).sin();
    let params: Vec<f32> = (0..LONG + 5).map(value).collect();
    let codes: Vec<i64> = (0..params.len()).map(|i| (i as i64 * 7_919) % 100_003 - 50_000).collect();
    let stepped = |range: std::ops::Range<usize>| {
        let mut sum = vec![u64::MAX; UpdateCode::len(range.len())];
        sum[range.len()..].fill(0);
        UpdateCode::add_encoded(EncodedSum::Wide(&codes[range.clone()]), &[2.0, 1.5], &mut sum);
        let sum = UpdateSum::new(sum, range.len()).unwrap();
        sum.applied_to(&Params::from(params[range].to_vec())).unwrap()
    };
    let (whole, half) = (stepped(0..params.len()), params.len() / 2);
    let parts = [stepped(0..half), stepped(half..params.len())].map(|part| part.as_slice().to_vec());
    assert!(whole.is_same(&Params::from(parts.concat())));
    assert!(!whole.is_same(&Params::from(params)));
}

#[test]
fn a_sum_over_nobody_moves_nothing() {
    let params = Params::from(vec![1.0]);
    assert_eq!(sum_of(params.as_slice(), &[]).applied_to(&params), None);
    assert_eq!(sum_of(params.as_slice(), &[(&[f32::NAN], 1.0)]).applied_to(&params), None);
}

#[test]
fn the_largest_updates_of_a_cohort_do_not_wrap() {
    let params = Params::from(vec![0.0]);
    let code = UpdateCode::new(1000);
    let largest = (code.limit / 2f64.powi(UPDATE_BITS)) as f32 * 0.999;
    let sum = sum_of(&[0.0], &vec![(&[largest][..], 1.0); 1000]);
    let moved = sum.applied_to(&params).unwrap().as_slice()[0];
    assert!((moved / largest - 1.0).abs() < 1e-6, "{moved} {largest}");
}
