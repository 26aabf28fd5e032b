//! Degree and threshold against an independent program: `parameters.py` computes (k, t) with
//! integers, without rounding.

use std::process::Command;

use deltafl_secagg::graph::parameters::{against_active, against_curious};

/// (n, c, d), then (k, t) against an active server and against an honest-but-curious one.
/// `parameters.py` prints this table.
type Row = (usize, usize, usize, Option<(usize, usize)>, Option<(usize, usize)>);

const TABLE: [Row; 14] = [
    (100, 5, 5, Some((24, 19)), Some((12, 6))),
    (100, 5, 20, Some((54, 34)), Some((22, 6))),
    (200, 10, 10, Some((44, 34)), Some((20, 11))),
    (200, 10, 40, Some((92, 58)), Some((30, 11))),
    (301, 15, 15, Some((58, 45)), Some((24, 14))),
    (301, 15, 60, Some((122, 78)), Some((38, 16))),
    (500, 25, 25, Some((70, 54)), Some((28, 16))),
    (500, 25, 100, Some((168, 109)), Some((44, 18))),
    (1000, 50, 50, Some((78, 60)), Some((30, 17))),
    (1000, 50, 200, Some((212, 137)), Some((50, 21))),
    (2000, 100, 100, Some((86, 66)), Some((30, 18))),
    (2000, 100, 400, Some((246, 159)), Some((52, 22))),
    (1000, 10, 100, Some((74, 49)), Some((24, 10))),
    (400, 190, 80, None, Some((192, 131))),
];

#[test]
fn degree_and_threshold_match_the_table() {
    for (n, c, d, active, curious) in TABLE {
        assert_eq!(
            against_active(n, c, d, d + 1),
            active,
            "{n} devices, {c} colluding, {d} dropping, active server"
        );
        assert_eq!(against_curious(n, c, d), curious, "{n} devices, {c} colluding, {d} dropping");
    }
}

#[test]
fn an_independent_program_with_integers_prints_the_table() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/parameters.py");
    let output = Command::new("python3").arg(file).output().expect("this test needs python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("digits");
    let pair =
        |pair: Option<(usize, usize)>| pair.map_or("None".to_owned(), |(k, t)| format!("Some(({k}, {t}))"));
    let row =
        |(n, c, d, active, curious): &Row| format!("({n}, {c}, {d}, {}, {}),", pair(*active), pair(*curious));
    let rows: Vec<String> = TABLE.iter().map(row).collect();
    assert_eq!(text.lines().collect::<Vec<_>>(), rows);
}
