# Runs the steps of tests/run, several at a time. Steps begin in the order of their declaration.
# Sourced by tests/run. Needs bash 4.4.
#
#   step NAME DESCRIPTION [full] [lane:LANE] [after:NAME]... COMMAND...
#
# `full` marks a slow step, which runs only under --full or when it is named. Steps of one lane run one after another,
# because cargo locks its build folder. A step begins when all its `after` steps have ended. The `after` steps must be
# declared earlier. If an `after` step fails, the step does not run, and is reported as failed. COMMAND is a function or
# a program; its output goes to target/tests/NAME.log.

names=()
declare -A description=() slow=() lane=() after=() command=() outcome=() reason=() seconds=() cpu=() started=()
declare -A running=() # the process of each running step
logs=target/tests
all_output=       # if set, the output of passed steps is printed too
skipped_status=77 # exit status of a step that cannot run here

step() {
    local name=$1 other
    names+=("$name") description[$name]=$2 lane[$name]='' after[$name]=''
    shift 2
    while :; do
        case $1 in
        full) slow[$name]=yes ;;
        lane:*) lane[$name]=${1#lane:} ;;
        after:*) after[$name]+=" ${1#after:}" ;;
        *) break ;;
        esac
        shift
    done
    for other in ${after[$name]}; do
        [ -n "${command[$other]:-}" ] || die "$name comes after $other, which no step before it is called"
    done
    command[$name]=$(printf '%q ' "$@")
}

say() { printf '%s\n' "$*" >&2; }

# Called by steps: ends the step as skipped, because KIND cannot be checked on this machine for REASON. If
# LGRECO_REQUIRE names KIND, the step fails instead.
skip() { # KIND REASON
    case ",${LGRECO_REQUIRE:-}," in *",$1,"*) say "LGRECO_REQUIRE names $1, but $2" && exit 1 ;; esac
    printf '%s\n' "$2" >"$logs/$step_name.reason"
    exit "$skipped_status"
}

# Keeps only the named steps and the steps that they depend on.
choose_steps() {
    local name other wanted=" $* " kept=() i
    for name in "$@"; do
        [ -n "${command[$name]:-}" ] || die "no step is called $name; tests/run --list shows them"
    done
    for ((i = ${#names[@]} - 1; i >= 0; i--)); do # a step is declared after the steps it depends on
        name=${names[i]}
        [[ $wanted == *" $name "* ]] || continue
        kept=("$name" "${kept[@]}") wanted+="${after[$name]} "
    done
    names=("${kept[@]}")
}

# Drops the slow steps, and notes their names.
left_to_full=()
leave_slow_steps() {
    local name kept=()
    for name in "${names[@]}"; do
        if [ -n "${slow[$name]:-}" ]; then left_to_full+=("$name"); else kept+=("$name"); fi
    done
    names=("${kept[@]}")
}

# Reports what --full would also have run: slow steps, and slow tests of other steps.
report_left_to_full() {
    local tests
    tests=$(cat "$logs"/*.log 2>/dev/null | grep -cE '^test .* \.\.\. ignored, slow')
    say "left to --full: steps ${left_to_full[*]}; $tests slow tests; cases that LGRECO_FULL adds to other tests"
}

line() { # NAME
    printf '%-4s %5s %5s  %-12s %s\n' "${outcome[$1]}" "${seconds[$1]:--}" "${cpu[$1]:--}" "$1" \
        "${description[$1]}${reason[$1]:+: ${reason[$1]}}"
}

# Prints a log without the progress lines of cargo and pip.
without_progress() {
    grep -vE '^ *(Compiling|Checking|Documenting|Downloading|Downloaded|Fresh|Packaging|Verifying) ' "$1" || true
}

# Prints what a failed step says of its failures, from where Rust's tests or pytest begin to list them. If a step lists
# no failures, prints the step's last lines.
failures() { # NAME
    local listed
    listed=$(sed -nE '/^(failures:|=+ FAILURES =+)$/,$p' "$logs/$1.log")
    [ -n "$listed" ] || listed=$(without_progress "$logs/$1.log" | tail -n 40)
    awk '{ line[NR] = $0 }
        END { for (i = 1; i <= NR; i++) if (i <= 60 || i > NR - 30) print "    " line[i]; else if (i == 61) print "    [...]" }' \
        <<<"$listed"
    say "    (more is in $logs/$1.log)"
}

# Prints what a step's programs have skipped, from the lines that Rust tests or pytest print. In Rust, a test's name may
# come first.
left_out() { # NAME
    sed -nE 's/^(test .* \.\.\. (ok)?)?SKIP(:|PED( \[[0-9]+\])?) /left out: /p' "$logs/$1.log" | sort -u | paste -sd ';' - | sed 's/;left/; left/g'
}

end_step() { # NAME STATUS CPU
    local name=$1
    seconds[$name]=$((SECONDS - started[$name])) cpu[$name]=$3
    case $2 in
    0) outcome[$name]=pass reason[$name]=$(left_out "$name") ;;
    "$skipped_status") # other programs may exit with this status too
        if [ -s "$logs/$name.reason" ]; then
            outcome[$name]=skip reason[$name]=$(<"$logs/$name.reason")
        else
            outcome[$name]=FAIL reason[$name]="exit code $2 without a reason to skip" failed=1
        fi
        ;;
    *) outcome[$name]=FAIL failed=1 ;;
    esac
    if [ -n "$all_output" ]; then say "==> $name" && without_progress "$logs/$name.log" >&2; fi
    line "$name" >&2
    if [ "${outcome[$name]}" = FAIL ] && [ -z "$all_output" ]; then
        failures "$name" >&2
    fi
}

# Prints the CPU seconds of all programs of a step, from the output of the shell's `times`.
cpu_seconds() { awk -F '[ms ]+' 'NR == 2 { printf "%d", 60 * ($1 + $3) + $2 + $4 + .5 }' "$logs/$1.times"; }

# Prints whether a step can run `now` or `later`, or why it cannot run any more.
readiness() { # NAME
    local other
    for other in ${after[$1]}; do
        case ${outcome[$other]:-} in
        pass | skip) ;;
        '') echo later && return ;;
        FAIL) echo "$other failed" && return ;;
        esac
    done
    for other in "${!running[@]}"; do
        if [ -n "${lane[$1]}" ] && [ "${lane[$other]}" = "${lane[$1]}" ]; then echo later && return; fi
    done
    echo now
}

start_step() { # NAME
    local name=$1 status
    started[$name]=$SECONDS
    { # A separate process group, so that an interrupt ends all of its processes.
        trap - INT TERM EXIT
        (step_name=$name && eval "${command[$name]}") </dev/null >"$logs/$name.log" 2>&1
        status=$?
        times >"$logs/$name.times"
        echo "$name $status $(cpu_seconds "$name")" >&"$ended"
    } &
    running[$name]=$!
}

stop_steps() {
    local process
    trap - INT TERM EXIT
    for process in "${running[@]}"; do kill -TERM -- "-$process" 2>/dev/null; done
    say "tests/run: interrupted during ${!running[*]}"
    exit 130
}

# Runs all steps; returns whether none failed.
run_steps() { # HOW MANY AT A TIME
    local name ready status cpu_time ended
    failed=0
    mkdir -p "$logs"
    rm -f "$logs"/*.log "$logs"/*.reason "$logs"/*.times "$logs/ended"
    mkfifo "$logs/ended" && exec {ended}<>"$logs/ended" # steps report here that they have ended
    set -m
    trap stop_steps INT TERM EXIT
    while :; do
        for name in "${names[@]}"; do
            [ ${#running[@]} -lt "$1" ] || break
            [ -z "${outcome[$name]:-}${started[$name]:-}" ] || continue
            ready=$(readiness "$name")
            case $ready in
            now) start_step "$name" ;;
            later) ;;
            *) outcome[$name]=FAIL reason[$name]="not run: $ready" failed=1 && line "$name" >&2 ;;
            esac
        done
        [ ${#running[@]} -gt 0 ] || break
        read -r name status cpu_time <&"$ended"
        unset "running[$name]"
        end_step "$name" "$status" "$cpu_time"
    done
    trap - INT TERM EXIT
    set +m
    exec {ended}>&-
    for name in "${names[@]}"; do
        [ -n "${outcome[$name]:-}" ] || outcome[$name]=FAIL reason[$name]="never run" failed=1
    done
    say ""
    if [ -n "$all_output" ]; then # the failures are far above by now
        for name in "${names[@]}"; do
            [ "${outcome[$name]}" != FAIL ] || [ ! -e "$logs/$name.log" ] || { line "$name" && failures "$name"; } >&2
        done
    fi
    say "        s CPU s"
    for name in "${names[@]}"; do line "$name" >&2; done
    [ ${#left_to_full[@]} = 0 ] || report_left_to_full
    if [ "$failed" = 0 ]; then say "all passed in $((SECONDS / 60)) min $((SECONDS % 60)) s"; else say FAILED; fi
    return "$failed"
}
