N=${1:-/work/wt-search/native}; O=${2:-/tmp/h/h}
g++ -O3 -g -std=c++20 -I$N /tmp/h/h.cpp $N/schedule_search.cpp $N/target_search.cpp $N/target_list.cpp $N/word_annealing.cpp $N/word_state.cpp $N/stream_problem.cpp $N/simulate.cpp -o $O 
