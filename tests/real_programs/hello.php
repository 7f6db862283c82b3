<?php
$words = ['one' => 1, 'two' => 2, 'three' => 3];
krsort($words);
echo json_encode($words), "\n";
printf("%s %.10f\n", preg_replace('/o(.)/', '0$1', 'one two four'), M_PI);
